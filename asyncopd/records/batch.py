"""What the learner is given for one optimizer step, and what it says of it."""

from __future__ import annotations

import msgspec

from asyncopd.records.differences import Differences
from asyncopd.records.scores import Scores
from asyncopd.records.segment import Segment


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A segment to train on. `scores` rows are its trained rows in order; absent for plain RL and SFT."""

    attempt: int
    group: int
    domain: str
    segment: Segment
    scores: Scores | None = None
    reward: float = 0.0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The members of optimizer step `step` (from 0), in ticket order."""

    step: int
    samples: list[Sample]


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt contributed to a step; staleness in optimizer steps, drift in nats a token."""

    attempt: int
    domain: str
    trained: int
    masked: dict[str, int]
    freshness: float
    lag_mean: float
    lag_max: int
    rollout_drift: float


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the learner did in one optimizer step.

    `metrics` are scalars by name (loss, gradient norm, ratios, coverage, log-prob differences);
    `lag_histogram` counts trained tokens by lag; `seconds` is the learner's own busy time. `agreement` compares
    engine and learner over tokens of the learner's weights whose context was computed with them too, `mixed` over
    those whose context was not.
    """

    step: int
    tokens: int
    attempts: list[AttemptReport]
    metrics: dict[str, float]
    lag_histogram: dict[int, int]
    seconds: float
    agreement: Differences = Differences()
    mixed: Differences = Differences()
