"""Measuring a model's success on the held-out tasks of a configuration."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import msgspec

from asyncopd.config.root import TrainConfig
from asyncopd.evaluate.evaluate import Evaluation, evaluate
from asyncopd.models.resolve import resolve
from asyncopd.records import Version
from asyncopd.rollout.pool import RolloutPool
from asyncopd.runtime.prepare import tokenizer_of
from asyncopd.runtime.roles import serving
from asyncopd.runtime.world import World, open_world
from asyncopd.seams import Generator
from asyncopd.text.chat import Chat


async def measure_on(config: TrainConfig, world: World, chat: Chat, engine: Generator, version: Version) -> Evaluation:
    """Live `config.evaluation.tasks` held-out tasks on an engine that serves `version`, or will soon."""
    section = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    async with AsyncExitStack() as stack:
        pool = RolloutPool(engine, world.make, chat, section, config.run.seed)
        stack.push_async_callback(pool.close)
        tasks = world.test[: config.evaluation.tasks]
        return await evaluate(pool, tasks, max_retries=config.evaluation.max_retries, min_version=version)


async def measure(config: TrainConfig, model: str) -> dict[str, Any]:
    """Start an engine on `model`, measure it, and return the evaluation as a dictionary."""
    directory = resolve(model)
    world = await open_world(config.environment)
    chat = Chat(tokenizer_of(config.student, directory), world.tools)
    async with serving(config, "measured", directory) as engine:
        return msgspec.to_builtins(await measure_on(config, world, chat, engine, engine.version))
