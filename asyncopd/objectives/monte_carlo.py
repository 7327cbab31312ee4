"""Estimators from tokens that the behaviour policy drew."""

from __future__ import annotations

from collections.abc import Callable

import torch

from asyncopd.objectives.ratios import log_ratio
from asyncopd.objectives.trust import unlimited

Trust = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def reverse_kl_mc(
    logp_RM: torch.Tensor, teacher_RM: torch.Tensor, behaviour_RM: torch.Tensor, trust: Trust = unlimited
) -> torch.Tensor:
    """Return `-(1/M)·Σ_j ρ_j·sg[log T_j - log π_j]`, shape R, for M i.i.d. draws of μ at each position.

    Column 0 is the generated token. `logp_RM` is log π under the learner as it is now, at the temperature
    of the divergence; `behaviour_RM` is log μ of the distribution really sampled, so that the gradient is
    an unbiased estimate of that of KL(π‖T) for any μ that covers π (AsyncOPD, arXiv 2606.24143).
    """
    advantage_RM = (teacher_RM - logp_RM).detach()
    return trust(advantage_RM, log_ratio(logp_RM, behaviour_RM)).mean(dim=-1)
