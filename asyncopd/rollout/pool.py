"""Many episodes at once, on one engine.

Invariants
- At most `section.max_concurrent` episodes are alive.
- `run` ends in a trajectory, a `RolloutError`, the death of the engine, an error of `on_turn`, or
  cancellation; each leaves the pool as it was.
- Every generation an engine returned was given to `on_turn` before the agent saw it.
- What is asked of the engine depends on run seed, task, sample and turn only, never on order or on other
  episodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import (
    NO_DRAWS,
    DrawSpec,
    GenerateRequest,
    Generation,
    Outcome,
    Sampling,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Version,
)
from asyncopd.rollout.environments import Environments
from asyncopd.rollout.seeds import episode_seed, turn_seed
from asyncopd.rollout.tool_loop import ToolLoop
from asyncopd.rollout.tools import call_tools
from asyncopd.seams import DeadlineExceeded, EngineDied, Environment, Episode, Generator
from asyncopd.text.chat import Chat

OnTurn = Callable[[Generation], Awaitable[None]]


class RolloutError(Exception):
    """An episode came to nothing through no fault of the agent: `reason` is `engine`, `environment` or `deadline`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class RolloutPool:
    """Lives attempts with the default agent."""

    def __init__(
        self,
        engine: Generator,
        make_environment: Callable[[], Environment],
        chat: Chat,
        section: RolloutSection,
        seed: int,
        draws: DrawSpec = NO_DRAWS,
    ) -> None:
        """`draws` are wanted of each generated token."""
        self.engine = engine
        self.chat = chat
        self.section = section
        self.seed = seed
        self.draws = draws
        self._agent = ToolLoop(chat, section, engine.capabilities.max_context)
        self._environments = Environments(make_environment)
        self._slots = asyncio.Semaphore(section.max_concurrent)

    async def run(
        self,
        attempt: int,
        task: Task,
        sample: int,
        min_version: Version,
        on_turn: OnTurn | None = None,
        engine: str | None = None,
    ) -> Trajectory:
        """Live one attempt at a task and return its record; numbers of attempts alive together differ.

        `engine` is the one to begin with, where there are several. `on_turn` is awaited with each generation.
        Raises `RolloutError` where another try may go better, and `EngineDied` where none can.
        """
        async with self._slots:
            deadline = asyncio.get_running_loop().time() + self.section.episode_timeout_s
            return await self._supervised(_Attempt(self, attempt, task, sample, min_version, on_turn, engine, deadline))

    async def close(self) -> None:
        """Close the environments; call it when no attempt is alive."""
        await self._environments.close()

    async def _supervised(self, attempt: _Attempt) -> Trajectory:
        """Turn whatever goes wrong in an episode into a `RolloutError`, here and nowhere else."""
        limit = asyncio.timeout_at(attempt.deadline)
        try:
            async with limit, self._environments.lent() as environment:
                trajectory = await self._agent.run(attempt.episode(environment))
                if trajectory.outcome == Outcome.INFRASTRUCTURE_ERROR:
                    raise RolloutError("environment", "it reports an infrastructure error")
                return trajectory
        except (RolloutError, EngineDied):
            raise
        except (Exception, SystemExit) as error:
            if attempt.place == "caller":
                raise
            if limit.expired():
                detail = f"the episode took over {self.section.episode_timeout_s:g} s, at last in {attempt.place}"
                raise RolloutError("deadline", detail) from error
            reason = "deadline" if isinstance(error, DeadlineExceeded) else attempt.place
            raise RolloutError(reason, f"{type(error).__name__}: {error}") from error


@dataclass
class _Attempt:
    """What one attempt asks for. `min_version` rises with its tokens; `place` says whose code it waits for."""

    pool: RolloutPool
    number: int
    task: Task
    sample: int
    min_version: Version
    on_turn: OnTurn | None
    engine: str | None
    deadline: float
    place: str = "environment"

    def episode(self, environment: Environment) -> Episode:
        async def run_calls(calls: Sequence[ToolCall]) -> list[ToolResult]:
            self.place = "tools"
            results = await call_tools(environment.tools, calls, self.pool.section.tool_timeout_s)
            self.place = "environment"
            return results

        return Episode(
            attempt=self.number,
            task=self.task,
            environment=environment,
            generate=self._generate,
            call_tools=run_calls,
            deadline=self.deadline,
            seed=episode_seed(self.pool.seed, self.task.id, self.sample),
        )

    async def _generate(self, prompt_ids: list[int], turn: int) -> Generation:
        self.place = "engine"
        generation = await self.pool.engine.generate(self._request(prompt_ids, turn))
        if len(generation.version_R):
            self.min_version = max(self.min_version, Version.unpack(int(generation.version_R.max())))
        if self.on_turn is not None:
            self.place = "caller"
            await self.on_turn(generation)
        if generation.stop_reason == "aborted":
            raise RolloutError("engine", f"it aborted turn {turn} of attempt {self.number}")
        self.place = "environment"
        return generation

    def _request(self, prompt_ids: list[int], turn: int) -> GenerateRequest:
        engine, section = self.pool.engine, self.pool.section
        sampling = Sampling(
            temperature=section.temperature,
            max_tokens=min(section.max_turn_tokens, engine.capabilities.max_context - len(prompt_ids)),
            seed=turn_seed(self.pool.seed, self.task.id, self.sample, turn),
            stop_ids=self.pool.chat.stop_ids,
            top_p=section.top_p,
            top_k=section.top_k,
        )
        return GenerateRequest(
            request_id=f"{self.number}-{turn}",
            trajectory_id=str(self.number),
            prompt_ids=prompt_ids,
            sampling=sampling,
            min_version=self.min_version,
            deadline=min(self.deadline, asyncio.get_running_loop().time() + section.generate_timeout_s),
            engine=self.engine,
            draws=self.pool.draws,
        )
