"""The layers of the design hold, and the contracts that say so notice when they do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    paths = ":".join(str(root / part) for part in ("", "envs", "teachers"))
    return subprocess.run(LINT, cwd=root, env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60)


def test_imports_go_down_the_layers() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("asyncopd/records/upward.py", "import asyncopd.scheduler.events"),
        ("asyncopd/scheduler/heavy.py", "def late():\n    import torch"),
        ("asyncopd/runtime/closed.py", "import asyncopd_envs"),
        ("asyncopd/unplaced/__init__.py", "import asyncopd.records"),
    ],
)
def test_a_forbidden_import_is_noticed(module: str, line: str, tmp_path: Path) -> None:
    for part in ("asyncopd", "envs", "teachers"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    target = tmp_path / module
    target.parent.mkdir(exist_ok=True)
    target.write_text(line + "\n")
    result = lint(tmp_path)
    assert result.returncode == 1 and "BROKEN" in result.stdout, result.stdout + result.stderr
