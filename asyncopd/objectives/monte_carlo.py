"""Estimators from tokens that the behaviour policy drew.

Shapes: R positions, K head entries, M draws. `logp` is log π under the learner as it is now, at the temperature of
the divergence, and carries the gradient; `teacher` is log T; `behaviour` is log μ of the distribution really
sampled. So gradients are unbiased estimates of that of KL(π‖T) for any μ that covers π. Results are nats, shape R.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from asyncopd.objectives.ratios import log_ratio
from asyncopd.objectives.tail import tail_probability
from asyncopd.objectives.trust import unlimited

Trust = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def reverse_kl_mc(
    logp_RM: torch.Tensor, teacher_RM: torch.Tensor, behaviour_RM: torch.Tensor, trust: Trust = unlimited
) -> torch.Tensor:
    """Return `-(1/M)·Σ_j ρ_j·sg[log T_j - log π_j]` for M i.i.d. draws of μ (AsyncOPD, arXiv 2606.24143).

    Column 0 may be the generated token, which is one of them.
    """
    advantage_RM = (teacher_RM - logp_RM).detach()
    return trust(advantage_RM, log_ratio(logp_RM, behaviour_RM)).mean(dim=-1)


def reverse_kl_head_tail(
    logp_RN: torch.Tensor, teacher_RN: torch.Tensor, behaviour_RN: torch.Tensor, head: int, trust: Trust = unlimited
) -> torch.Tensor:
    """Return `-Σ_k π_k·sg[log T_k - log π_k] - (μ_tail/M)·Σ_j ρ_j·sg[log T_j - log π_j]`.

    The first `head` columns are TopK(μ), whose share is exact; the others are draws from μ given not in the
    head, whose share is estimated. Unbiased as the i.i.d. draws are, and of far lower variance. A tail
    without draws (log μ = -inf) has no share.
    """
    head_logp_RK, tail_logp_RM = logp_RN[:, :head], logp_RN[:, head:]
    head_R = -(head_logp_RK.exp() * (teacher_RN[:, :head] - head_logp_RK).detach()).sum(dim=-1)
    tail_R = reverse_kl_mc(tail_logp_RM, teacher_RN[:, head:], behaviour_RN[:, head:], trust)
    # Without draws, what is left of the mass is rounding, and the ratio is held at its limit.
    mass_R = tail_probability(behaviour_RN[:, :head]).clamp(min=0) * behaviour_RN[:, head].isfinite()
    return head_R + mass_R * tail_R
