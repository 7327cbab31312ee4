"""What is left of a leashed command, however it or its starter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncopd.leash import leashed, private_directory

# Starts a child that ignores the signal that ends it, then waits.
STUBBORN = "sh -c 'trap \"\" TERM; sleep 60' & sleep 60"


@pytest.fixture
def directory() -> Iterator[Path]:
    path = private_directory()
    yield path
    assert not path.exists()


def start(command: list[str], directory: Path, grace_s: float = 0.3) -> subprocess.Popen[bytes]:
    return subprocess.Popen(leashed(command, grace_s, directory), stdin=subprocess.PIPE, start_new_session=True)


def gone(leader: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_closing_the_pipe_ends_the_whole_group_even_who_ignores_it(directory: Path) -> None:
    process = start(["sh", "-c", STUBBORN], directory)
    time.sleep(0.2)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(5)
    assert gone(process.pid, 5)


def test_the_exit_code_is_the_commands_and_its_children_are_told_to_end(directory: Path) -> None:
    process = start(["sh", "-c", "sleep 60 & exit 7"], directory)
    assert process.wait(5) == 7
    assert process.stdin is not None
    process.stdin.close()
    assert gone(process.pid, 5)


def test_a_starter_that_is_killed_leaves_nothing(directory: Path) -> None:
    script = (
        "import subprocess, sys, time; from pathlib import Path; from asyncopd.leash import leashed;"
        "c = leashed(['sleep', '60'], 0.3, Path(sys.argv[1]));"
        "p = subprocess.Popen(c, stdin=subprocess.PIPE, start_new_session=True);"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        leader = int(starter.stdout.readline())
        os.killpg(leader, 0)
        starter.kill()
    assert gone(leader, 5)


def test_a_command_keeps_its_own_handling_of_the_signal(directory: Path) -> None:
    process = start(
        [sys.executable, "-c", "import signal; raise SystemExit(signal.getsignal(15) != signal.SIG_DFL)"], directory
    )
    assert process.wait(5) == 0
    os.killpg(process.pid, signal.SIGKILL)


def test_others_cannot_enter_a_private_directory() -> None:
    path = private_directory()
    assert path.stat().st_mode & 0o077 == 0
    path.rmdir()


def test_a_command_without_a_directory_leaves_none_and_says_nothing(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(leashed(["true"], 0.3), start_new_session=True, cwd=tmp_path, **pipes)
    assert process.stdout is not None
    assert process.stdout.read() == b""
    assert process.wait(5) == 0
    process.communicate()
    assert gone(process.pid, 5)
    assert not list(tmp_path.iterdir())
