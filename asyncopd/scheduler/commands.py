"""Everything the scheduler can ask of the runtime; each is idempotent by its attempt or step."""

from __future__ import annotations

import msgspec

from asyncopd.records import Version


class Command(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An order to the runtime."""


class StartAttempt(Command, frozen=True):
    """Roll out task number `task` of the training split; every request carries `min_version`.

    `sample` is the index of the attempt's sample of that task, inherited by retries, so that seeds are too.
    """

    attempt: int
    task: int
    sample: int
    group: int
    step: int
    min_version: Version
    engine: str
    parent: int | None = None


class ScoreAttempt(Command, frozen=True):
    """Have the teacher score the trajectory under `payload`; `step` is the ticket, for priority."""

    attempt: int
    payload: str
    step: int


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a step: where its trajectory and scores wait, and the predicted weight in (0, 1]."""

    attempt: int
    group: int
    domain: str
    reward: float
    trajectory: str
    scores: str | None
    weight: float


class TrainStep(Command, frozen=True):
    """Take optimizer step `step` with these members, in ticket order."""

    step: int
    members: tuple[Member, ...]


class PublishWeights(Command, frozen=True):
    """Bring every engine to `version`."""

    version: Version


class SaveCheckpoint(Command, frozen=True):
    """Make everything up to version `step` durable."""

    step: int


class ReleasePayloads(Command, frozen=True):
    """These payload keys will never be asked for again."""

    keys: tuple[str, ...]


class FinishRun(Command, frozen=True):
    """All steps are trained, or all that was wanted before a stop; nothing more will be commanded."""

    reason: str


class FailRun(Command, frozen=True):
    """The run cannot go on; `reason` is for the user."""

    reason: str


AnyCommand = (
    StartAttempt | ScoreAttempt | TrainStep | PublishWeights | SaveCheckpoint | ReleasePayloads | FinishRun | FailRun
)
