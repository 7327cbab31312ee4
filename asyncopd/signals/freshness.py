"""How far a stale sample may be trusted as on-policy, and how much it counts for that.

    f = 1/(τ + 1) · exp(−α√D_roll − β√D_sup),  τ = lag / max(1, η),  w = max(0, f − ξ)/(1 − ξ)

The form is that of f-OPD (arXiv 2605.17862), whose constants are unpublished. Every function takes
scalars or arrays alike and computes in float64. Legend: T trained tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asyncopd.config.scheduler import FreshnessSection


def freshness(
    lag: npt.ArrayLike,
    max_staleness: int,
    rollout_drift: npt.ArrayLike,
    supervision_drift: npt.ArrayLike,
    section: FreshnessSection,
) -> npt.NDArray[np.float64]:
    """Return f in (0, 1] of samples of mean lag `lag` ≥ 0 in optimizer steps; 1 where all three are 0.

    `rollout_drift` and `supervision_drift` are D_roll and D_sup, at least 0, in nats a token.
    """
    age = np.asarray(lag, dtype=np.float64) / max(1, max_staleness)
    rollout = section.alpha * np.sqrt(np.asarray(rollout_drift, dtype=np.float64))
    supervision = section.beta * np.sqrt(np.asarray(supervision_drift, dtype=np.float64))
    return np.exp(-rollout - supervision) / (age + 1.0)


def weight(f: npt.ArrayLike, xi: float) -> npt.NDArray[np.float64]:
    """Return w in [0, 1] of samples of freshness f in (0, 1]; 0 at or below the floor `xi` in [0, 1)."""
    return np.maximum(0.0, np.asarray(f, dtype=np.float64) - xi) / (1.0 - xi)


def drift(log_ratio_T: npt.ArrayLike, mismatch: float = 0.0) -> float:
    """Return D_roll, an estimate of KL(π‖μ) in nats a token, from tokens that μ sampled.

    `log_ratio_T` is log ρ = log π − log μ of each, so the mean of ρ log ρ − ρ + 1 is unbiased and no
    term of it is negative. `mismatch` is the same mean at lag 0, where engine and learner differ in
    numerics only; what is left is floored at 0. No tokens have no drift.
    """
    log_ratio = np.asarray(log_ratio_T, dtype=np.float64)
    if log_ratio.size == 0:
        return 0.0
    # ρ log ρ − ρ + 1 cancels near ρ = 1; through expm1 it does not.
    terms = np.exp(log_ratio) * log_ratio - np.expm1(log_ratio)
    return max(0.0, float(terms.mean()) - mismatch)
