"""The long-lived parts of a local run, started together and ended in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncopd.config.root import SftConfig, TrainConfig
from asyncopd.engines.start import start_engine
from asyncopd.records import Version
from asyncopd.rollout.pool import RolloutPool
from asyncopd.runtime.learner_process import LearnerProcess
from asyncopd.runtime.metered import MeteredGenerator
from asyncopd.runtime.prepare import Prepared, make_teacher
from asyncopd.runtime.record import Record
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.scoring.cache.open import open_store
from asyncopd.scoring.service import ScoringService
from asyncopd.seams import Engine, Generator, Teacher, WeightSync
from asyncopd.telemetry.metrics import Metrics
from asyncopd.weights.open import open_sync


@dataclass(frozen=True)
class Roles:
    """What the stages of a run work with."""

    engine: Generator
    pool: RolloutPool
    service: ScoringService
    learner: LearnerProcess
    sync: WeightSync


@asynccontextmanager
async def open_roles(
    prepared: Prepared, directory: RunDirectory, record: Record, metrics: Metrics
) -> AsyncIterator[Roles]:
    """Start engine, teacher, learner and cache; all are gone when the block ends, however it ends."""
    config = prepared.config
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(config.scoring, directory.path / "score-cache"))
        teacher = make_teacher(config, prepared.teacher, prepared.world.tools)
        stack.push_async_callback(teacher.close)
        engine, learner = await _start(prepared, record, teacher, stack)
        sync = open_sync(
            config.weights,
            config.engine,
            lambda: [engine.receiver],
            run_directory=directory.path,
            weights_bytes=_weight_bytes(prepared.student),
            learner_timeout_s=config.learner.timeout_s,
        )
        stack.callback(sync.close)
        metered = MeteredGenerator(engine, metrics.busy["rollout"])
        pool = RolloutPool(metered, prepared.world.make, prepared.chat, config.rollout, config.run.seed)
        stack.push_async_callback(pool.close)
        service = ScoringService(teacher, store, config.scoring, prepared.support)
        stack.push_async_callback(service.close)
        yield Roles(metered, pool, service, learner, sync)


@asynccontextmanager
async def serving(config: TrainConfig | SftConfig, name: str, directory: Path) -> AsyncIterator[Engine]:
    """Have an engine on `directory`, for measuring a model that does not train."""
    engine = await _start_engine(config, name, directory)
    try:
        yield engine
    finally:
        await engine.close()


async def _start_engine(config: TrainConfig | SftConfig, name: str, directory: Path) -> Engine:
    return await start_engine(
        name,
        directory,
        config.engine,
        dtype=config.student.dtype,
        threads=config.runtime.threads.engine,
        seed=config.run.seed,
        version=Version(0, 0),
    )


async def _start(
    prepared: Prepared, record: Record, teacher: Teacher, stack: AsyncExitStack
) -> tuple[Engine, LearnerProcess]:
    """Start the processes together; what has started when one fails is ended by `stack`."""

    async def start_student() -> Engine:
        engine = await _start_engine(prepared.config, "student-0", prepared.student)
        stack.push_async_callback(engine.close)
        return engine

    async def start_learner() -> LearnerProcess:
        learner = await LearnerProcess.start(prepared.config, prepared.student, record.checkpoint, record.timeline)
        stack.push_async_callback(learner.close)
        return learner

    try:
        async with asyncio.TaskGroup() as group:
            engine = group.create_task(start_student())
            learner = group.create_task(start_learner())
            group.create_task(teacher.start())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return engine.result(), learner.result()


def _weight_bytes(student: Path) -> int:
    return sum(file.stat().st_size for file in student.glob("*.safetensors"))
