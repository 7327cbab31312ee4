from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asyncopd.weights.shm import OwnedDirectory, reclaim, roomy_directory

OWNER = """
import sys, time
from pathlib import Path
from asyncopd.weights.shm import OwnedDirectory
owned = OwnedDirectory(Path(sys.argv[1]))
(owned.path / "weights").write_bytes(b"x" * 100)
print(owned.path, flush=True)
time.sleep(60)
"""


def test_a_living_owner_keeps_its_directory_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    theirs = Path(owner.stdout.readline().strip())
    ours = OwnedDirectory(tmp_path)
    assert theirs.exists()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert reclaim(tmp_path) == [theirs]
    assert ours.path.exists()
    ours.close()
    assert os.listdir(tmp_path) == []


def test_a_new_owner_reclaims_what_was_abandoned(tmp_path: Path) -> None:
    abandoned = tmp_path / "asyncopd-weights-1-left"
    abandoned.mkdir()
    (abandoned / "weights").write_bytes(b"x")
    (tmp_path / "somebody-elses").mkdir()
    owned = OwnedDirectory(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([owned.path.name, "somebody-elses"])
    owned.close()


def test_runs_that_start_at_once_do_not_trip_over_what_both_reclaim(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as runs:
        for round_ in range(20):
            for number in range(20):
                (tmp_path / f"asyncopd-weights-{round_}-{number}").mkdir()
            removed = [future.result() for future in [runs.submit(reclaim, tmp_path) for _ in range(8)]]
            assert sum(map(len, removed)) == 20
    assert os.listdir(tmp_path) == []


def test_what_does_not_fit_in_memory_goes_to_the_run(tmp_path: Path) -> None:
    assert roomy_directory(tmp_path, 2**60) == tmp_path
    assert roomy_directory(tmp_path, 1) == Path("/dev/shm")
