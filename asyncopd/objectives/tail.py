"""The tail bucket: all probability outside a support, as one event."""

from __future__ import annotations

import math

import torch


def tail_probability(logp_RK: torch.Tensor) -> torch.Tensor:
    """Return `1 - Σ_k exp(logp_RK)`, shape R, differentiable; rounding may leave it just below 0."""
    return -torch.expm1(torch.logsumexp(logp_RK, dim=-1))


def log_tail(logp_RK: torch.Tensor) -> torch.Tensor:
    """Return the log of the tail probability, shape R, floored at the dtype's rounding error.

    Below the floor the tail is rounding noise: its logarithm says nothing and has no gradient.
    """
    return tail_probability(logp_RK).clamp(min=torch.finfo(logp_RK.dtype).eps).log()


def floored(tail_R: torch.Tensor) -> torch.Tensor:
    """Return the log of a tail's mass, held at the floor of `log_tail`."""
    return tail_R.clamp(min=math.log(torch.finfo(tail_R.dtype).eps))
