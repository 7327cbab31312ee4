"""Episodes lived by an environment's expert, recorded as a model's would be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import (
    Generation,
    LossMask,
    Message,
    Observation,
    Segment,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Version,
)
from asyncopd.rollout.tool_loop import ToolLoop
from asyncopd.rollout.tools import call_tools
from asyncopd.seams import Episode, ExpertEnvironment, Tool
from asyncopd.text.chat import Chat


async def demonstrate(
    environment: ExpertEnvironment,
    chat: Chat,
    task: Task,
    *,
    attempt: int,
    seed: int,
    section: RolloutSection,
    max_context: int,
    train_on_errors: bool = False,
) -> Trajectory:
    """Let the expert live one episode and return its record.

    Ids are those the chat template gives to the expert's messages, log-probs 0, versions `0.0`. Turns that do
    not teach are masked as `DEMONSTRATED_ERROR` unless `train_on_errors`. Raises what the environment
    raises, `ValueError` where the template cannot be spoken by a model, and `TimeoutError`.
    """
    stage = _Stage(environment, chat, task, seed, max_context)

    async def run_calls(calls: Sequence[ToolCall]) -> list[ToolResult]:
        return await call_tools(environment.tools, calls, section.tool_timeout_s)

    episode = Episode(
        attempt=attempt,
        task=task,
        environment=stage,
        generate=stage.generate,
        call_tools=run_calls,
        deadline=asyncio.get_running_loop().time() + section.episode_timeout_s,
        seed=seed,
    )
    async with asyncio.timeout_at(episode.deadline):
        trajectory = await ToolLoop(chat, section, max_context).run(episode)
    if train_on_errors:
        return trajectory
    segments = [_masked(segment, stage.errors) for segment in trajectory.segments]
    return msgspec.structs.replace(trajectory, segments=segments)


class _Stage:
    """The environment, overheard: knows the conversation, so that it can say what the expert would."""

    def __init__(self, environment: ExpertEnvironment, chat: Chat, task: Task, seed: int, max_context: int) -> None:
        self.errors: list[int] = []
        self._environment = environment
        self._chat = chat
        self._task = task
        self._seed = seed
        self._max_context = max_context
        self._history: list[Message] = []

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._environment.tools

    async def reset(self, task: Task, seed: int) -> Observation:
        observation = await self._environment.reset(task, seed)
        self._history = list(observation.messages)
        return observation

    async def step(self, action: Message, results: Sequence[ToolResult] = ()) -> Step:
        step = await self._environment.step(action, results)
        self._history += [action, *(result.message() for result in results), *step.messages]
        return step

    async def finish(self, trajectory: Trajectory) -> Step:
        return await self._environment.finish(trajectory)

    async def close(self) -> None:
        await self._environment.close()

    async def generate(self, prompt_ids: list[int], turn: int) -> Generation:
        """Say what the expert says, cut where the context is full."""
        demonstration = self._environment.expert(self._task, self._history, self._seed)
        if not demonstration.teaches:
            self.errors.append(turn)
        ids = self._chat.turn_ids(self._history, demonstration.message)
        said = ids[: self._max_context - len(prompt_ids)]
        return Generation(
            ids_R=np.array(said, np.int32),
            logp_R=np.zeros(len(said), np.float32),
            version_R=np.full(len(said), Version(0, 0).pack(), np.int64),
            mixed_kv_R=np.zeros(len(said), np.uint8),
            stop_reason="stop" if len(said) == len(ids) else "length",
        )


def _masked(segment: Segment, turns: Sequence[int]) -> Segment:
    """Return the segment with what was said in `turns` seen but not taught."""
    wrong_T = np.isin(segment.turn_T, turns) & (segment.loss_mask_T == LossMask.TRAIN)
    mask_T = np.where(wrong_T, np.uint8(LossMask.DEMONSTRATED_ERROR), segment.loss_mask_T)
    return msgspec.structs.replace(segment, loss_mask_T=mask_T)
