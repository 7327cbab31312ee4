"""Small runs of the quickstart, as a user starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[3] / "configs"

# The reference engine starts at once; what these tests are about does not depend on the engine.
SMALL = {
    "engine.use": "torch",
    "run.steps": "6",
    "run.checkpoint_every": "2",
    "scheduler.batch_size": "8",
    "rollout.max_concurrent": "16",
    "evaluation.tasks": "0",
}


@pytest.fixture
def command():
    """Return the command line of a small training with further overrides."""

    def build(directory: Path, *options: str, **overrides: str) -> list[str]:
        settings = {**SMALL, "run.dir": str(directory), **{k.replace("__", "."): v for k, v in overrides.items()}}
        sets = [word for field, value in settings.items() for word in ("--set", f"{field}={value}")]
        return [sys.executable, "-m", "asyncopd.cli.main", "train", str(CONFIGS / "quickstart.yaml"), *sets, *options]

    return build


@pytest.fixture
def run(command):
    """Run a small training to its end and return the finished process."""

    def start(directory: Path, *options: str, **overrides: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(directory, *options, **overrides), capture_output=True, text=True, timeout=240, check=False
        )

    return start
