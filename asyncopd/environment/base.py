"""The class that an environment's author extends; it implements `asyncopd.seams.Environment`."""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from asyncopd.config.section import Section
from asyncopd.environment.rewards import Unjudged, rewards_of
from asyncopd.environment.tools import bound_tools
from asyncopd.environment.worker import Worker
from asyncopd.records import Message, Observation, Outcome, Step, Task, ToolResult, Trajectory
from asyncopd.seams import Tool


class NoOptions(Section):
    """For an environment that has none."""


class Environment(ABC):
    """Poses tasks, offers tools, answers and rewards. An instance lives one episode after another.

    An author writes `make_tasks`, `prompt` and at least one reward; the other methods have defaults. All but
    `make_tasks` may be `async`; those that are not run in a thread of the episode's own, so they may block. What an
    episode needs to remember is set in `setup` as attributes. Within an episode there are `task`, `seed`, `random`
    (seeded), `history` (every message so far, prompt included), `earned` (rewards so far, weighted) and, at its end,
    `trajectory`.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A `Section` (pydantic) of the options that `environment.options` may set, as `self.options`."""

    success_at: ClassVar[float] = 1.0
    """The episode is a success where its rewards sum to this or more."""

    task: Task
    seed: int
    random: random.Random
    history: list[Message]
    trajectory: Trajectory

    def __init__(self, **options: Any) -> None:
        """Raises `pydantic.ValidationError`, a `ValueError`, for options that are wrong."""
        self.options = self.Options(**options)
        self._worker = Worker()
        self._alive = False
        self.earned = 0.0
        self._tools: dict[str, Tool] = {**bound_tools(self, self._call)}

    # --- what an author writes -------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def make_tasks(split: str, options: Any) -> Sequence[Task]:
        """Return the tasks of `train` or `test`, disjoint, in a fixed order."""

    def setup(self) -> Any:  # noqa: B027 - most need none
        """Prepare what the episode of `self.task` needs."""

    @abstractmethod
    def prompt(self) -> Any:
        """Return what the agent is first shown: messages, or the text of the user's."""

    def privileged(self) -> Any:
        """Return messages for a privileged teacher, never for the student."""
        return []

    def respond(self, action: Message) -> Any:
        """Return what follows an action without calls: messages, the text of the user's, or None to end the episode."""
        return None

    def done(self) -> Any:
        """Return whether the episode is over although the agent called tools; asked after they ran."""
        return False

    def outcome(self) -> Any:
        """Return how the episode ended, asked after its rewards; by default whether they reach `success_at`."""
        return Outcome.SUCCESS if self.earned >= self.success_at else Outcome.FAILURE

    def cleanup(self) -> Any:  # noqa: B027 - likewise
        """Release what `setup` took; runs once for each `setup`, however the episode ended."""

    # --- asyncopd.seams.Environment ----------------------------------------------------------------------

    @classmethod
    def tasks(cls, split: str, **options: Any) -> list[Task]:
        """Return the tasks of a split. Raises `ValueError` for another split or wrong options."""
        return list(cls.make_tasks(split, cls.Options(**options)))

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin an episode."""
        await self._leave()
        self.task, self.seed, self.random, self.history = task, seed, random.Random(seed), []
        self.earned = 0.0
        self._alive = True
        await self._call(self.setup)
        self.history = messages_of(await self._call(self.prompt))
        return Observation(messages=list(self.history), privileged=messages_of(await self._call(self.privileged)))

    async def step(self, action: Message, results: Sequence[ToolResult] = ()) -> Step:
        """Answer an action whose tools have run."""
        self.history += [action, *(result.message() for result in results)]
        rewards = await self._rewards("turn", action, list(results))
        if action.tool_calls:
            return Step(rewards=rewards, done=bool(await self._call(self.done)))
        answer = await self._call(self.respond, action)
        if answer is None:
            return Step(rewards=rewards, done=True)
        messages = messages_of(answer)
        self.history += messages
        return Step(messages=messages, rewards=rewards)

    async def finish(self, trajectory: Trajectory) -> Step:
        """Reward the episode and release what it held."""
        self.trajectory = trajectory
        self.history = [*trajectory.prompt, *(message for turn in trajectory.turns for message in turn.messages)]
        try:
            rewards = await self._rewards("episode")
            outcome = None if trajectory.outcome is Outcome.TRUNCATED else await self._call(self.outcome)
        except Unjudged:
            return Step(done=True, outcome=Outcome.INFRASTRUCTURE_ERROR)
        finally:
            await self._leave()
        return Step(rewards=rewards, done=True, outcome=outcome)

    async def close(self) -> None:
        """Release what an episode that never finished held."""
        try:
            await self._leave()
        finally:
            self._worker.close()

    # --- within ------------------------------------------------------------------------------------------

    async def _call(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **named)
        if function.__module__ == __name__:  # a default of this class, which blocks nobody
            return function(*arguments, **named)
        return await self._worker.call(function, *arguments, **named)

    async def _rewards(self, per: Any, *arguments: Any) -> dict[str, float]:
        rewards = {}
        for mark, attribute in rewards_of(type(self), per):
            rewards[mark.name] = mark.weight * float(await self._call(getattr(self, attribute), *arguments))
        self.earned += sum(rewards.values())
        return rewards

    async def _leave(self) -> None:
        if self._alive:
            self._alive = False
            await self._call(self.cleanup)


def messages_of(said: Any) -> list[Message]:
    """Return messages as they are, and a text as a user's message."""
    if isinstance(said, str):
        return [Message(role="user", content=said)]
    if isinstance(said, Message):
        return [said]
    return list(said)
