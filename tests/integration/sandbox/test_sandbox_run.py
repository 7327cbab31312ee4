"""A run says which walls its programs are behind, and does not begin behind weaker ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CONFIG = Path(__file__).parents[3] / "configs" / "python.yaml"


def dry_run(directory: Path, demanded: str) -> subprocess.CompletedProcess[str]:
    fields = (f"run.dir={directory / 'run'}", f"rollout.sandbox={demanded}")
    settings = [word for field in fields for word in ("--set", field)]
    command = [sys.executable, "-m", "asyncopd.cli.main", "train", str(CONFIG), "--dry-run", *settings]
    environment = {**os.environ, "PATH": str(directory)}  # where no bwrap is
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)


def test_a_run_is_refused_where_its_walls_are_too_weak(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "bubblewrap")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "rollout.sandbox bubblewrap: only " in said and "bwrap is not on PATH" in said


def test_a_run_says_which_walls_it_has(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "rlimits")
    assert done.returncode == 0, done.stderr
    assert "'sandbox': 'namespaces: no network" in done.stdout or "'sandbox': 'rlimits: limits on" in done.stdout
