"""Terms that hold the learner near another policy."""

from __future__ import annotations

import torch

from asyncopd.objectives.context import Context
from asyncopd.objectives.monte_carlo import reverse_kl_mc


def drift(context: Context) -> torch.Tensor:
    """Return the local KL(π‖μ) on stale tokens and 0 on fresh ones, shape R (f-OPD, arXiv 2605.17862).

    It is `reverse_kl_mc` with the behaviour policy in the teacher's place, from the generated token alone.
    """
    logp_R1, behaviour_R1 = context.logp_R[:, None], context.behaviour_R[:, None]
    return reverse_kl_mc(logp_R1, behaviour_R1, behaviour_R1) * (context.lag_R > 0)
