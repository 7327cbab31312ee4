"""Importance ratios of the learner to the policy that sampled."""

from __future__ import annotations

import torch

MAX_LOG_RATIO = 20.0
"""Nats at which a log-ratio is held, so that its exponential stays finite; any excess is a bias, and counted."""


def log_ratio(logp: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
    """Return `log π - log μ` elementwise, held within ±`MAX_LOG_RATIO`; no gradient where it is held."""
    return (logp - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
