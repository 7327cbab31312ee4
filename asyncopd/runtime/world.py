"""The environment of a run, tried before anything is spent: its code is the user's, and may do anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from asyncopd.config.environment import EnvironmentSection
from asyncopd.errors import UserError
from asyncopd.plugins import find_for
from asyncopd.records import Task, ToolSpec
from asyncopd.seams import Environment
from asyncopd.text.chat import Chat

# Prompts rendered to find one that leaves no room to answer.
_PROBED_TASKS = 64
# Seconds that listing tasks, or posing one, may take before a run.
_TRIAL_S = 60.0


@dataclass(frozen=True)
class World:
    """The environment of a run: its name, its tasks, its tools, and a way to make instances."""

    name: str
    make: Callable[[], Environment]
    train: Sequence[Task]
    test: Sequence[Task]
    tools: list[ToolSpec]


async def open_world(section: EnvironmentSection) -> World:
    """Find the environment that `section` names and list its tasks. Raises `UserError`."""
    factory = find_for("environment.use", "asyncopd.envs", section.use)
    async with _trial(section.use):
        try:
            environment = factory(**section.options)
            tools = [tool.spec for tool in environment.tools.values()]
            train = factory.tasks("train", **section.options)
            test = factory.tasks("test", **section.options)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError("environment.options", reason, f"see the README of {section.use!r}") from error
        await environment.close()
    if not train:
        raise UserError("environment", f"{section.use!r} has no training tasks", "change its options")
    for split, tasks in (("train", train), ("test", test)):
        identifier, times = Counter(task.id for task in tasks).most_common(1)[0] if tasks else ("", 0)
        if times > 1:
            raise UserError(
                f"environment.use {section.use}",
                f"{times} of its {split} tasks have the id {identifier!r}",
                "give each task an id of its own",
            )
    return World(section.use, lambda: factory(**section.options), train, test, tools)


async def check_prompts(world: World, chat: Chat, *, max_context: int, seed: int) -> list[list[int]]:
    """Pose some tasks, training ones first, and return their prompts.

    Raises `UserError` if one cannot be posed, or its prompt leaves no room in `max_context`.
    """
    environment = world.make()
    prompts = []
    try:
        for task in (*world.train[:_PROBED_TASKS], *world.test[:_PROBED_TASKS]):
            async with _trial(world.name, f" with task {task.id!r}"):
                observation = await environment.reset(task, seed)
            prompts.append(chat.prompt_ids(observation.messages))
            length = len(prompts[-1])
            if length >= max_context:
                raise UserError(
                    f"engine.max_context {max_context}",
                    f"the prompt of task {task.id!r} has {length} tokens",
                    "raise it, or shorten the prompt",
                )
    finally:
        async with _trial(world.name):
            await environment.close()
    return prompts


@asynccontextmanager
async def _trial(name: str, where: str = "") -> AsyncIterator[None]:
    """Turn whatever an environment raises, and its silence, into a `UserError`."""
    limit = asyncio.timeout(_TRIAL_S)
    try:
        async with limit:
            yield
    except UserError:
        raise
    except Exception as error:
        problem = f"no answer within {_TRIAL_S:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
        said = " ".join(problem.split())
        raise UserError(f"environment.use {name}", f"it failed{where} ({said})", "correct the environment") from error
