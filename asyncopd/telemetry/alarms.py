"""What is wrong with a run that goes on: said once a cause, and kept for its summary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.config.rollout import RolloutSection
from asyncopd.records import Differences

_LIMITS: dict[Dtype, float] = {"float32": 0.001, "bfloat16": 0.15}
"""Nats; rounding alone was measured at 0.00001 and 0.065."""
_ROUNDING_OPTIONS = ("quantization", "kv_cache_dtype")
"""Engine options that take precision away from whatever dtype there is."""


class Alarms:
    """Counts alarms by cause; `warn` is told of the first of each."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._rung: dict[str, dict[str, Any]] = {}

    def ring(self, cause: str, step: int, message: str) -> None:
        """Raise the alarm `cause` at optimizer step `step`; `message` has figures and the way out."""
        known = self._rung.get(cause)
        if known is None:
            self._rung[cause] = {"cause": cause, "step": step, "message": message, "count": 1}
            self._warn(f"step {step}: {message}")
        else:
            known["count"] += 1

    def restore(self, rung: list[dict[str, Any]]) -> None:
        """Go on from what `to_json` returned in a former process."""
        self._rung = {alarm["cause"]: dict(alarm) for alarm in rung}

    def to_json(self) -> list[dict[str, Any]]:
        """Return an object a cause: `cause`, the `step` and `message` of its first alarm, and their `count`."""
        return [dict(alarm) for alarm in self._rung.values()]


def agreement_limit(engine: EngineSection, rollout: RolloutSection, dtype: Dtype) -> float:
    """Return the mean |log π − log μ| at equal weights, nats, above which engine and learner disagree.

    Infinite where `top_p` or `top_k` cuts μ, whose log-probs then are not the learner's.
    """
    if rollout.top_p < 1 or rollout.top_k:
        return math.inf
    rounds = any(engine.options.get(option) is not None for option in _ROUNDING_OPTIONS)
    return engine.logprob_alarm or _LIMITS["bfloat16" if rounds else dtype]


def disagreement(differences: Differences, limit: float, engine: str = "the engine") -> str | None:
    """Return what to say of an engine whose log-probs are too far from the learner's, None if they are not."""
    if differences.mean <= limit:
        return None
    return (
        f"{engine} and the learner disagree: mean |log π − log μ| is {differences.mean:.3g} nats at equal weights "
        f"(p99 {differences.quantile(0.99):.3g}, max {differences.greatest:.3g}, {differences.tokens} tokens), above "
        f"engine.logprob_alarm = {limit:g}; either the engine serves other weights than it was sent, or it rounds "
        "more: look at student.dtype and engine.options, or raise engine.logprob_alarm"
    )
