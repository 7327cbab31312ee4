"""The long-lived parts of a local run, started together and ended in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from asyncopd.config.root import SftConfig, TrainConfig
from asyncopd.engines.fleet import Fleet
from asyncopd.engines.start import start_engine
from asyncopd.engines.supervisor import Start, Supervisor
from asyncopd.records import NO_DRAWS, DrawSpec, Version
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
from asyncopd.weights.protocol import PublishFailed


@dataclass(frozen=True)
class Roles:
    """What the stages of a run work with; `engine` is the metered `fleet`."""

    engine: Generator
    fleet: Fleet
    supervisor: Supervisor
    pool: RolloutPool
    service: ScoringService
    learner: LearnerProcess
    sync: WeightSync


@asynccontextmanager
async def open_roles(
    prepared: Prepared, directory: RunDirectory, record: Record, metrics: Metrics, warn: Callable[[str], None]
) -> AsyncIterator[Roles]:
    """Start engines, teacher, learner and cache; all are gone when the block ends, however it ends.

    `warn` is told of engines that are lost, and what happens then.
    """
    config = prepared.config
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(config.scoring, directory.path / "score-cache"))
        teacher = make_teacher(config, prepared.teacher, prepared.world.tools)
        stack.push_async_callback(teacher.close)
        fleet = Fleet("student", metrics.engines)
        sync = open_sync(
            config.weights,
            config.engine,
            lambda: fleet.receivers,
            run_directory=directory.path,
            weights_bytes=_weight_bytes(prepared.student),
            learner_timeout_s=config.learner.timeout_s,
        )
        stack.callback(sync.close)
        start = starter(config, prepared.student, directory.engine_logs, prepared.draws)
        supervisor = Supervisor(fleet, config.engine, start, sync.catch_up, warn)
        stack.push_async_callback(supervisor.close)
        learner = await _start(prepared, record, supervisor, teacher, stack)
        if config.engine.urls and record.step == 0:
            await _give_weights(sync, learner)
        metered = MeteredGenerator(fleet, metrics.busy["rollout"])
        make, chat, seed = prepared.world.make, prepared.chat, config.run.seed
        pool = RolloutPool(metered, make, chat, config.rollout, seed, prepared.draws)
        stack.push_async_callback(pool.close)
        service = ScoringService(teacher, store, config.scoring, prepared.support)
        stack.push_async_callback(service.close)
        yield Roles(metered, fleet, supervisor, pool, service, learner, sync)


@asynccontextmanager
async def serving(config: TrainConfig | SftConfig, name: str, directory: Path) -> AsyncIterator[Engine]:
    """Have an engine on `directory`, for measuring a model that does not train."""
    engine = await _start_engine(config, name, directory)
    try:
        yield engine
    finally:
        await engine.close()


def starter(config: TrainConfig, student: Path, logs: Path, draws: DrawSpec) -> Start:
    """Return what starts an engine of the student, with up to `draws` a token."""
    # In this process one waits for the other: vLLM is configured through the environment, and transformers loads
    # models with settings that are global.
    turn = nullcontext() if config.engine.use == "vllm_server" else asyncio.Lock()

    async def start(name: str, url: str | None) -> Engine:
        async with turn:
            return await _start_engine(config, name, student, url, logs, draws)

    return start


async def _start_engine(
    config: TrainConfig | SftConfig,
    name: str,
    directory: Path,
    url: str | None = None,
    logs: Path | None = None,
    draws: DrawSpec = NO_DRAWS,
) -> Engine:
    return await start_engine(
        name,
        directory,
        config.engine,
        dtype=config.student.dtype,
        threads=config.runtime.threads.engine,
        seed=config.run.seed,
        version=Version(0, 0),
        url=url,
        logs=logs,
        draws=draws,
    )


async def _start(
    prepared: Prepared, record: Record, supervisor: Supervisor, teacher: Teacher, stack: AsyncExitStack
) -> LearnerProcess:
    """Start the processes together; what has started when one fails is ended by `stack`."""

    async def start_learner() -> LearnerProcess:
        learner = await LearnerProcess.start(prepared.config, prepared.student, record.checkpoint, record.timeline)
        stack.push_async_callback(learner.close)
        return learner

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.start())
            learner = group.create_task(start_learner())
            group.create_task(teacher.start())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return learner.result()


async def _give_weights(sync: WeightSync, learner: LearnerProcess) -> None:
    """Bring servers that run already to the student's weights: they have others, or nobody knows which."""
    report = await sync.publish(Version(0, 0), learner)
    for reason in report.failed.values():
        raise PublishFailed(reason)


def _weight_bytes(student: Path) -> int:
    return sum(file.stat().st_size for file in student.glob("*.safetensors"))
