"""`sft`: supervised fine-tuning on an expert's episodes, with the learner and the masks of `train`.

Invariants
- The engine that measures generates only between the learner's calls.
- A batch depends on seed and step only, so a resumed run takes the steps the undisturbed one would.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.root import SftConfig
from asyncopd.config.scheduler import FreshnessSection
from asyncopd.engines.vllm.options import check_options
from asyncopd.errors import UserError
from asyncopd.learner.learner import Learner
from asyncopd.learner.targets import check_lora
from asyncopd.models.resolve import resolve
from asyncopd.plugins import UnknownPlugin, find
from asyncopd.runtime.callbacks import Callback
from asyncopd.runtime.demonstrations import Demonstrations, record
from asyncopd.runtime.learner_thread import LearnerThread
from asyncopd.runtime.meter import Meter, open_meter
from asyncopd.runtime.prepare import check_context, check_tokenizer, tokenizer_of
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.sft_report import SftReport
from asyncopd.runtime.world import World, open_world
from asyncopd.text.chat import Chat


@dataclass(frozen=True)
class SftResult:
    """Where the run and its student lie, and what `summary.json` holds."""

    run: Path
    student: Path
    summary: dict[str, Any]


@dataclass(frozen=True)
class _Fit:
    """What the loop works with. Without a meter nothing is measured."""

    config: SftConfig
    world: World
    demonstrations: Demonstrations
    learner: LearnerThread
    meter: Meter | None
    directory: RunDirectory
    report: SftReport


async def sft(config: SftConfig, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> SftResult:
    """Fine-tune `config.student` on demonstrations and export it.

    `resume` goes on from the last checkpoint in `run.dir`, without one from the start.
    Raises `UserError` before anything is spent.
    """
    began = time.monotonic()
    directory = RunDirectory.named(config.run.dir, config.run.name)
    _check_directory(directory, resume)
    world = await open_world(config.environment)
    _initialise(config)
    student = resolve(config.student.model)
    check_options(config.engine, student, config.student.dtype)
    if config.learner.lora is not None:
        check_lora(config.learner.lora, student)
    check_context("student", config.engine.max_context, student)
    tokenizer = tokenizer_of(config.student, student)
    check_tokenizer("student", tokenizer, student)
    chat = Chat(tokenizer, world.tools)
    report = SftReport(directory, config.run.steps, callbacks)
    report.stage("recording demonstrations")
    demonstrations = await record(config, world, chat, report.warn)
    async with AsyncExitStack() as stack:
        stack.enter_context(directory.locked())
        if not resume:
            directory.create(config)
        stack.callback(report.close)
        learner = await _start_learner(config, student, directory.latest_checkpoint() if resume else None)
        stack.callback(learner.close)
        meter = None
        if config.evaluation.tasks or config.stop:
            meter = await stack.enter_async_context(open_meter(config, world, chat, student, learner, directory.path))
        await _run(_Fit(config, world, demonstrations, learner, meter, directory, report))
        await learner.export(directory.student)
        summary = report.finish(learner.steps, time.monotonic() - began)
    return SftResult(directory.path, directory.student, summary)


async def _run(fit: _Fit) -> None:
    """Take the steps, measuring before and after."""
    config, learner = fit.config, fit.learner
    if config.initialise is None:
        await _measure_held_out(fit, "student_before")
    start = await _measure_stop(fit)
    fit.report.training_begins(learner.steps)
    done = False
    while learner.steps < config.run.steps and not done:
        batch = fit.demonstrations.batch(learner.steps, config.batch_size)
        report = await learner.step(batch)
        success = None
        if config.stop is not None and learner.steps % config.stop.every == 0:
            success = await _measure_stop(fit)
            # Whichever side it began on.
            done = (success - config.stop.success) * (start - config.stop.success) <= 0
        fit.report.step(batch, report, success)
        if learner.steps % config.run.checkpoint_every == 0 or done or learner.steps == config.run.steps:
            with fit.directory.new_checkpoint(learner.steps) as path:
                await learner.save(path)
    await _measure_held_out(fit, "student_after")


async def _measure_held_out(fit: _Fit, name: str) -> None:
    tasks = fit.world.test[: fit.config.evaluation.tasks]
    if fit.meter is not None and tasks:
        fit.report.stage(f"measuring {name.replace('_', ' ')} on {len(tasks)} held-out tasks")
        fit.report.evaluated(name, await fit.meter.measure(tasks))


async def _measure_stop(fit: _Fit) -> float:
    if fit.config.stop is None:
        return 0.0
    assert fit.meter is not None
    return (await fit.meter.measure(fit.world.train[-fit.config.stop.tasks :])).success


def _check_directory(directory: RunDirectory, resume: bool) -> None:
    if resume and not directory.config.exists():
        raise UserError(f"run.dir {directory.path}", "holds no run", "give the directory of an interrupted run")
    if not resume and directory.config.exists():
        raise UserError(
            f"run.dir {directory.path}", "already holds a run", "resume it with --resume, or choose another directory"
        )
    if not resume:
        directory.check_new()


def _initialise(config: SftConfig) -> None:
    """Make the student's model where the configuration says how and it is not there yet."""
    directory = Path(config.student.model)
    if config.initialise is None or directory.exists():
        return
    try:
        find("asyncopd.models", config.initialise.use)(directory, **config.initialise.options)
    except (UnknownPlugin, TypeError, ValueError, OSError) as error:
        raise UserError("initialise", str(error), "correct use, options or student.model") from None


async def _start_learner(config: SftConfig, student: Path, checkpoint: Path | None) -> LearnerThread:
    def build() -> Learner:
        learner = Learner(
            student,
            model=config.student,
            section=config.learner,
            objective=ObjectiveSection(use="cross_entropy"),
            freshness=FreshnessSection(),
            max_staleness=0,
            temperature=1.0,
            steps=config.run.steps,
            seed=config.run.seed,
        )
        if checkpoint is not None:
            learner.restore(checkpoint)
        return learner

    return await LearnerThread.start(build, config.runtime.threads.learner, config.learner.timeout_s)
