"""Everything that can happen to a run. The journal is a sequence of these, and nothing else."""

from __future__ import annotations

import msgspec

from asyncopd.records import AttemptReport, TrajectoryMeta, Version


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`time` is seconds since the epoch, stamped when it was journalled; `apply` reads no other clock."""

    time: float


class EngineReady(Event, frozen=True):
    """An engine serves `version` from now on: it started, or an update was committed."""

    engine: str
    version: Version


class EngineLost(Event, frozen=True):
    """An engine serves nothing any more."""

    engine: str


class TurnGenerated(Event, frozen=True):
    """An engine returned `tokens` tokens for an attempt, finished or aborted; versions are of its tokens."""

    attempt: int
    tokens: int
    first: Version
    last: Version


class RolloutFinished(Event, frozen=True):
    """An episode ended and its trajectory is durable. `trainable = 0` leaves nothing to score."""

    meta: TrajectoryMeta


class RolloutFailed(Event, frozen=True):
    """An episode came to nothing through no fault of the agent; its ticket returns for a retry."""

    attempt: int
    reason: str


class Scored(Event, frozen=True):
    """The teacher's scores of an attempt are durable under `payload`; `unscored` tokens teach nothing."""

    attempt: int
    payload: str
    unscored: int = 0


class StepTrained(Event, frozen=True):
    """The learner turned version k into k + 1."""

    step: int
    attempts: tuple[AttemptReport, ...]


class CheckpointSaved(Event, frozen=True):
    """All training up to version `step` is durable; what it trained on may be forgotten."""

    step: int


class RolledBack(Event, frozen=True):
    """The learner was restored to `step`; a new timeline begins, and nothing is rolling."""

    timeline: int
    step: int


class StopRequested(Event, frozen=True):
    """Someone wants the run to end early; no more attempts are admitted."""

    reason: str


AnyEvent = (
    EngineReady
    | EngineLost
    | TurnGenerated
    | RolloutFinished
    | RolloutFailed
    | Scored
    | StepTrained
    | CheckpointSaved
    | RolledBack
    | StopRequested
)
