"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from asyncopd.tensors.files import whole_file

FULL = """
import sys
from asyncopd.tensors.files import whole_file
with whole_file("/mnt/weights") as file:
    file.write(b"old")
try:
    with whole_file("/mnt/weights") as file:
        file.write(bytes(1 << 20))
except OSError as error:
    import os
    print(error, open("/mnt/weights", "rb").read(), os.listdir("/mnt"))
"""


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_what_is_interrupted_leaves_the_old_file_and_no_litter(tmp_path: Path, scheme: str) -> None:
    path = f"{scheme}{tmp_path}/weights"
    with whole_file(path) as file:
        file.write(b"old")
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"half of the n")
        raise KeyError
    filesystem, name = fsspec.url_to_fs(path)
    assert filesystem.cat_file(name) == b"old"
    assert len(filesystem.ls(os.path.dirname(name))) == 1
    with whole_file(path) as file:
        file.write(b"new")
    assert filesystem.cat_file(name) == b"new"


def test_a_failed_write_names_the_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught, whole_file(str(tmp_path / "weights")) as file:
            file.write(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "weights")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError) as missing, whole_file(str(tmp_path / "none" / "weights")):
        pass
    assert missing.value.filename == str(tmp_path / "none" / "weights")


def test_a_full_disk_keeps_the_old_file_and_says_what_to_set() -> None:
    mount = "mount -t tmpfs -o size=64k none /mnt"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no filesystem can be mounted here")
    run = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, FULL]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout
    assert said.startswith("[Errno 28] No space left on device")
    assert "weights.dir" in said and "'/mnt/weights'" in said
    assert said.endswith("b'old' ['weights']\n")
