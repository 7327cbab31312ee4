"""`sft`: supervised fine-tuning on an expert's episodes, with the learner and the masks of `train`.

Invariants
- The learner's calls run one after another in one thread; an engine generates only between them.
- A batch depends on seed and step only, so a resumed run takes the steps the undisturbed one would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.root import SftConfig
from asyncopd.config.scheduler import FreshnessSection
from asyncopd.errors import UserError
from asyncopd.evaluate.evaluate import Evaluation, evaluate
from asyncopd.learner.learner import Learner
from asyncopd.models.mapped import write_tensors
from asyncopd.models.resolve import resolve
from asyncopd.plugins import find
from asyncopd.records import Task, Version
from asyncopd.rollout.pool import RolloutPool
from asyncopd.runtime.callbacks import Callback
from asyncopd.runtime.demonstrations import Demonstrations, record
from asyncopd.runtime.prepare import World, check_context, open_world, tokenizer_of
from asyncopd.runtime.roles import serving
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.sft_report import SftReport
from asyncopd.seams import Engine, Manifest
from asyncopd.text.chat import Chat
from asyncopd.weights.sync import ShmWeightSync


@dataclass(frozen=True)
class SftResult:
    """What came of a fine-tuning; `student` is an ordinary Hugging Face checkpoint."""

    run: Path
    student: Path
    steps: int
    seconds: float
    before: Evaluation | None
    after: Evaluation | None


async def sft(config: SftConfig, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> SftResult:
    """Fine-tune `config.student` on demonstrations and export it.

    `resume` goes on from the last checkpoint in `run.dir`. Raises `UserError` before anything is spent.
    """
    began = time.monotonic()
    directory = RunDirectory.named(config.run.dir, config.run.name)
    if resume and not directory.config.exists():
        raise UserError(f"run.dir {directory.path}", "holds no run", "give the directory of an interrupted run")
    if not resume:
        directory.check_new()
    world = await open_world(config.environment)
    if config.initialise is not None:
        _initialise(config)
    student = resolve(config.student.model)
    check_context(config, student)
    chat = Chat(tokenizer_of(config.student, student), world.tools)
    if not resume:
        directory.create(config)
    with SftReport(directory, config.run.steps, callbacks) as report:
        report.stage(f"recording {config.demonstrations.episodes} demonstrations")
        demonstrations = await record(config, world, chat, report.warn)
        async with _open_learner(config, student, directory, resume) as learner:
            trainer = _Trainer(config, world, chat, demonstrations, learner, directory, report)
            before, after = await trainer.run(student)
            await learner.call(Learner.export, directory.student)
            result = SftResult(directory.path, directory.student, learner.steps, time.monotonic() - began, before, after)
        report.finish(result)
    return result


class _LearnerThread:
    """A learner whose calls run in one thread, so that the event loop stays free; also a `WeightSource`."""

    def __init__(self, learner: Learner, thread: ThreadPoolExecutor) -> None:
        self._learner = learner
        self._thread = thread

    @property
    def steps(self) -> int:
        return self._learner.step_count

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, method, self._learner, *arguments)

    async def send(self, version: Version, path: str) -> Manifest:
        return await self.call(lambda learner: write_tensors(path, version, learner.named_tensors()))
