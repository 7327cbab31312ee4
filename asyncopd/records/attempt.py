"""The small record of an attempt that travels through channels and the scheduler."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from asyncopd.records.trajectory import Outcome


class AttemptState(StrEnum):
    """Where an attempt is; it moves rightwards only, except back to `READY` at a rollback."""

    ADMITTED = "admitted"
    ROLLING = "rolling"
    SCORING = "scoring"
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    DROPPED = "dropped"


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one finished attempt, by fate. `trainable + Σ masked` is what engines returned for it."""

    prompt: int
    trainable: int
    masked: dict[str, int] = {}

    @property
    def generated(self) -> int:
        return self.trainable + sum(self.masked.values())


class TrajectoryMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knows of a finished attempt; arrays stay in the payload store.

    `first_step`, `last_step` and `mean_step` are the optimizer steps of its generated tokens'
    versions (minimum, maximum, token-weighted mean). `payload` is the trajectory's key.
    """

    attempt: int
    task: str
    domain: str
    group: int
    tokens: TokenCounts
    first_step: int
    last_step: int
    mean_step: float
    reward: float
    outcome: Outcome
    payload: str
