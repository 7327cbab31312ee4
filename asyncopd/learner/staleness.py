"""How fresh each sample of a step is, by the learner's own log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncopd.config.scheduler import FreshnessSection
from asyncopd.learner.member import Member
from asyncopd.objectives.ratios import MAX_LOG_RATIO
from asyncopd.signals.freshness import drift, freshness, weight

_MISMATCH_DECAY = 0.9
"""How slowly the engine–learner mismatch is forgotten, a step."""


@dataclass(frozen=True)
class Verdict:
    """Freshness f and weight w of one sample, and its rollout drift in nats a token."""

    freshness: float
    weight: float
    drift: float


class Staleness:
    """Judges samples; `mismatch` is the drift seen at lag 0, in nats a token, where there can be none.

    It is None until a step had tokens at lag 0, and constant within a step, so that a sample's weight does
    not depend on its place in the batch.
    """

    def __init__(self, section: FreshnessSection, max_staleness: int) -> None:
        self._section = section
        self._max_staleness = max_staleness
        self.mismatch: float | None = None

    def judge(self, members: Sequence[Member], logp: Sequence[np.ndarray]) -> list[Verdict]:
        """Return a verdict for each member, given log π of its trained tokens."""
        return [self._verdict(member, logp_R) for member, logp_R in zip(members, logp, strict=True)]

    def observe(self, log_ratio_R: np.ndarray) -> None:
        """Learn the mismatch from `log π - log μ` of a step's tokens at lag 0."""
        if not len(log_ratio_R):
            return
        seen = drift(_held(log_ratio_R))
        if self.mismatch is None:
            self.mismatch = seen
        else:
            self.mismatch = _MISMATCH_DECAY * self.mismatch + (1 - _MISMATCH_DECAY) * seen

    def _verdict(self, member: Member, logp_R: np.ndarray) -> Verdict:
        if not member.lag_R.any():
            return Verdict(freshness=1.0, weight=1.0, drift=0.0)
        moved = drift(_held(logp_R - member.behaviour_R), self.mismatch or 0.0)
        fresh = float(freshness(member.lag_R.mean(), self._max_staleness, moved, 0.0, self._section))
        return Verdict(freshness=fresh, weight=float(weight(fresh, self._section.xi)), drift=moved)


def _held(log_ratio_R: np.ndarray) -> np.ndarray:
    """Hold log-ratios where the objectives hold them, so that drift stays finite."""
    return np.clip(log_ratio_R, -MAX_LOG_RATIO, MAX_LOG_RATIO)
