"""One training run in the local runtime: from its start, or its last checkpoint, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncopd.errors import UserError
from asyncopd.records import StepReport, Version
from asyncopd.runtime.channels import AsyncioChannel
from asyncopd.runtime.interruption import Interruption
from asyncopd.runtime.journal import Journal
from asyncopd.runtime.measure import measure_on
from asyncopd.runtime.payloads import FilePayloadStore
from asyncopd.runtime.prepare import Prepared
from asyncopd.runtime.reporting import Reporter
from asyncopd.runtime.roles import Roles, open_roles, serving
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.run_loop import RunLoop
from asyncopd.runtime.stages import LearnerStage, RolloutStage, ScoringStage
from asyncopd.runtime.totals import restore
from asyncopd.runtime.watchdog import watch
from asyncopd.scheduler import commands, events
from asyncopd.scheduler.scheduler import Scheduler
from asyncopd.seams import Engine
from asyncopd.telemetry.metrics import Metrics


@dataclass(frozen=True)
class Record:
    """What is durable of a run: scheduler state, journal, payloads, and where to go on from."""

    scheduler: Scheduler
    journal: Journal
    payloads: FilePayloadStore
    checkpoint: Path | None
    timeline: int
    step: int


@asynccontextmanager
async def open_record(prepared: Prepared, directory: RunDirectory, *, resume: bool) -> AsyncIterator[Record]:
    """Open the durable part of a new run, or of an interrupted one by replaying its journal."""
    config = prepared.config
    scheduler = Scheduler(
        config.scheduler,
        steps=config.run.steps,
        task_count=len(prepared.world.train),
        seed=config.run.seed,
        max_concurrent=config.rollout.max_concurrent,
        checkpoint_every=config.run.checkpoint_every,
    )
    journal, past = Journal.reopen(directory.journal) if resume else (Journal(directory.journal), [])
    _replay(scheduler, past, directory.journal)
    payloads = FilePayloadStore(directory.payloads, needed=scheduler.payloads)
    checkpoint = directory.latest_checkpoint() if resume else None
    timelines = [event.timeline for event in past if isinstance(event, events.RolledBack)]
    try:
        yield Record(
            scheduler=scheduler,
            journal=journal,
            payloads=payloads,
            checkpoint=checkpoint,
            timeline=max(timelines, default=0) + 1 if resume else 0,
            step=int(checkpoint.name.removeprefix("step-")) if checkpoint else 0,
        )
    finally:
        await journal.close()
        await payloads.close()


def _replay(scheduler: Scheduler, past: Sequence[events.AnyEvent], journal: Path) -> None:
    for number, event in enumerate(past, 1):
        try:
            scheduler.apply(event)
        except AssertionError as error:
            raise UserError(
                f"{journal}:{number}", f"does not follow from the events before it ({error})", "start a new run"
            ) from None


async def run_once(
    prepared: Prepared, directory: RunDirectory, reporter: Reporter, interruption: Interruption, *, resume: bool
) -> dict[str, Any]:
    """Train to the end, measure, export and return the summary.

    Raises `CancelledError` where an interruption ended it early, and `WorkerLost`, `EngineDied` and
    `PublishFailed` when a process died; calling again with `resume` goes on.
    """
    metrics = Metrics()
    async with open_record(prepared, directory, resume=resume) as record:
        counted = reporter.go_on(record.step, metrics)
        reporter.stage("starting engine, teacher, learner and score cache")
        async with open_roles(prepared, directory, record.checkpoint, metrics) as roles:
            if counted is not None:
                restore(counted, metrics, roles.service.stats)
            await _measure(prepared, reporter, roles.engine, "student_before", Version(0, 0))
            with interruption.patiently():
                await _train(prepared, directory, record, roles, reporter, metrics, interruption.asked, resume=resume)
            if interruption.asked.is_set():
                raise asyncio.CancelledError
            trained = Version(record.timeline, prepared.config.run.steps)
            await _measure(prepared, reporter, roles.engine, "student_after", trained)
            await roles.learner.export(directory.student)
            service = roles.service
        evaluation = prepared.config.evaluation
        if evaluation.teacher and evaluation.tasks and "teacher" not in reporter.evaluations:
            reporter.stage("starting an engine for the teacher")
            async with serving(prepared.config, "teacher", prepared.teacher) as engine:
                await _measure(prepared, reporter, engine, "teacher", Version(0, 0))
        return reporter.summary(record.scheduler, metrics, service)


async def _train(
    prepared: Prepared,
    directory: RunDirectory,
    record: Record,
    roles: Roles,
    reporter: Reporter,
    metrics: Metrics,
    stop: asyncio.Event,
    *,
    resume: bool,
) -> None:
    config = prepared.config
    channels = {name: AsyncioChannel(name, config.rollout.max_concurrent) for name in ("rollout", "scoring")}
    learning = AsyncioChannel("learning", capacity=8)
    loop = RunLoop(
        record.scheduler,
        record.journal,
        rollouts=channels["rollout"],
        scoring=channels["scoring"],
        learning=learning,
        release=record.payloads.release,
    )

    def on_step(command: commands.TrainStep, report: StepReport) -> None:
        reporter.step(command, report, record.scheduler, metrics, roles.service.stats)

    rollout = RolloutStage(
        channels["rollout"], roles.pool, prepared.world.train, record.payloads, loop, metrics, reporter.trajectory
    )
    scoring = ScoringStage(channels["scoring"], roles.service, record.payloads, loop, metrics)
    reporter.training_begins()
    metrics.loop_lag.start()
    async with _supervised(loop) as spawn:
        learner = LearnerStage(
            learning, roles.learner, roles.sync, roles.engine, record.payloads, directory, loop, metrics, on_step, spawn
        )
        for _ in range(config.rollout.max_concurrent):
            spawn(rollout.work())
            spawn(scoring.work())
        spawn(learner.work())
        spawn(watch(loop, config.runtime.watchdog_s, reporter.warn))
        spawn(_request_stop(loop, stop))
        version = Version(record.timeline, record.step)
        if resume:
            loop.emit(events.RolledBack, timeline=record.timeline, step=record.step)
        else:
            loop.emit(events.EngineReady, engine=roles.engine.name, version=version)
        await loop.run()
        await learner.published()
    metrics.loop_lag.stop()
    reporter.training_ends()


@asynccontextmanager
async def _supervised(loop: RunLoop) -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]]:
    """Give a function that spawns tasks; one that fails ends the loop, and all end with the block."""
    tasks: list[asyncio.Task[None]] = []

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            loop.fail(error)

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        tasks.append(task)
        return task

    try:
        yield spawn
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _request_stop(loop: RunLoop, stop: asyncio.Event) -> None:
    await stop.wait()
    loop.emit(events.StopRequested, reason="interrupted")


async def _measure(prepared: Prepared, reporter: Reporter, engine: Engine, name: str, version: Version) -> None:
    config = prepared.config
    if config.evaluation.tasks == 0 or name in reporter.evaluations:
        return
    reporter.stage(f"measuring {name.replace('_', ' ')} on {config.evaluation.tasks} held-out tasks")
    reporter.evaluated(name, await measure_on(config, prepared.world, prepared.chat, engine, version))
