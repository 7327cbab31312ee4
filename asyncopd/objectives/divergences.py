"""Divergences between learner and teacher, summed over a support and its tail bucket.

Shapes: R positions, K support entries. `logp_RK` is log π under the learner as it is now and carries the
gradient; `teacher_RK` is log T, and `teacher_tail_R` the log of its mass outside the support, by default what
`teacher_RK` leaves (rounded log-probs leave another). Results are nats, shape R; their mean over positions is a loss.
"""

from __future__ import annotations

import torch

from asyncopd.objectives.tail import floored, log_tail, tail_probability


def reverse_kl_topk(
    logp_RK: torch.Tensor, teacher_RK: torch.Tensor, teacher_tail_R: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the reverse KL of the distributions coarsened to the support and one tail event.

    `-Σ_k π_k·sg[log T_k - log π_k] - π_tail·sg[log T_tail - log π_tail]`. The gradient flows through π
    alone; that of the log cancels over a whole distribution and would be a bias over a part of one.
    Low variance; biased by what the bucket hides.
    """
    advantage_RK = (teacher_RK - logp_RK).detach()
    tail_advantage_R = (_teacher_tail(teacher_RK, teacher_tail_R) - log_tail(logp_RK)).detach()
    return -(logp_RK.exp() * advantage_RK).sum(dim=-1) - tail_probability(logp_RK) * tail_advantage_R


def forward_kl(
    logp_RK: torch.Tensor, teacher_RK: torch.Tensor, teacher_tail_R: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the forward KL of the distributions coarsened to the support and one tail event.

    `Σ_k T_k·[log T_k - log π_k] + T_tail·[log T_tail - log π_tail]`. The teacher weighs the tokens, so
    stale rollouts change only which prefixes are seen.
    """
    mass_R = tail_probability(teacher_RK).clamp(min=0) if teacher_tail_R is None else teacher_tail_R.exp()
    tail_R = mass_R * (_teacher_tail(teacher_RK, teacher_tail_R) - log_tail(logp_RK))
    return (teacher_RK.exp() * (teacher_RK - logp_RK)).sum(dim=-1) + tail_R


def _teacher_tail(teacher_RK: torch.Tensor, teacher_tail_R: torch.Tensor | None) -> torch.Tensor:
    return log_tail(teacher_RK) if teacher_tail_R is None else floored(teacher_tail_R)
