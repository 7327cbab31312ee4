"""The record of an attempt."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from asyncopd.records.messages import Message, ToolCall
from asyncopd.records.segment import Segment
from asyncopd.records.task import Task


class Outcome(StrEnum):
    """How an episode ended. Infrastructure errors teach nothing: they are never reward 0."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    TOOL_ERROR = "tool_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds spent in a turn."""

    generate: float = 0.0
    tools: float = 0.0


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant generation and the observation that follows.

    `messages` begins with the assistant's own. `stop_reason` is `stop`, `length` or `aborted`.
    """

    agent: str
    messages: list[Message]
    tool_calls: list[ToolCall]
    rewards: dict[str, float]
    timings: Timings
    stop_reason: str


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything recorded of one attempt at a task.

    `prompt` is what the agent was first shown; `reward` is the weighted sum of all turns' rewards;
    `drift` counts the turns at which the prefix broke and a new segment had to begin.
    """

    task: Task
    attempt: int
    prompt: list[Message]
    segments: list[Segment]
    turns: list[Turn]
    outcome: Outcome
    reward: float
    privileged: list[Message] = []
    drift: int = 0
