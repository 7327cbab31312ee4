"""Measures a learner's success as it learns: its weights are published to an engine that lives tasks with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from asyncopd.config.root import SftConfig
from asyncopd.evaluate.evaluate import Evaluation, evaluate
from asyncopd.records import Task, Version
from asyncopd.rollout.pool import RolloutPool
from asyncopd.runtime.learner_thread import LearnerThread
from asyncopd.runtime.roles import serving
from asyncopd.runtime.world import World
from asyncopd.seams import Engine
from asyncopd.text.chat import Chat
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync


class Meter:
    """Made by `open_meter`; not for use while the learner steps."""

    def __init__(
        self, pool: RolloutPool, engine: Engine, sync: FileWeightSync, learner: LearnerThread, max_retries: int
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._sync = sync
        self._learner = learner
        self._max_retries = max_retries

    async def measure(self, tasks: Sequence[Task]) -> Evaluation:
        """Live each task once with the learner's weights as they are."""
        version = Version(0, self._learner.steps)
        if self._engine.version != version:
            await self._sync.publish(version, self._learner)
        return await evaluate(self._pool, tasks, max_retries=self._max_retries, min_version=version)


@asynccontextmanager
async def open_meter(
    config: SftConfig, world: World, chat: Chat, student: Path, learner: LearnerThread, directory: Path
) -> AsyncIterator[Meter]:
    """Have an engine that serves the learner's weights; `student` holds those of step 0."""
    section = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving(config, "measuring", student))
        sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(directory), config.engine.update_timeout_s)
        stack.callback(sync.close)
        pool = RolloutPool(engine, world.make, chat, section, config.run.seed)
        stack.push_async_callback(pool.close)
        yield Meter(pool, engine, sync, learner, config.evaluation.max_retries)
