"""What an objective is given: log-probabilities of the trained tokens of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Context:
    """Log-probabilities in nats. Shapes: R trained tokens, K support entries.

    logp_R        log π of the generated token at the sampling temperature; carries gradient
    behaviour_R   log μ of the generated token, as it was sampled
    lag_R         optimizer steps between the learner and the version that sampled the token
    freshness_R   weight w in [0, 1] of the token's sample
    logp_RK       log π at the support's ids at the distillation temperature; carries gradient
    teacher_RK    log T at the support's ids
    teacher_tail_R  log of T's mass outside them, where they are distinct
    behaviour_RK  log μ at the support's ids, -inf where a tail had nothing to draw; K = 0 where the teacher chose
                  them
    """

    logp_R: torch.Tensor
    behaviour_R: torch.Tensor
    lag_R: torch.Tensor
    freshness_R: torch.Tensor
    logp_RK: torch.Tensor
    teacher_RK: torch.Tensor
    teacher_tail_R: torch.Tensor
    behaviour_RK: torch.Tensor
