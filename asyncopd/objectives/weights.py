"""How much each trained token counts, in [0, 1]."""

from __future__ import annotations

import torch

from asyncopd.objectives.context import Context


def uniform(context: Context) -> torch.Tensor:
    """Return 1 for every token, shape R."""
    return torch.ones_like(context.logp_R)


def freshness(context: Context) -> torch.Tensor:
    """Return the freshness weight of each token's sample, shape R (f-OPD, arXiv 2605.17862)."""
    return context.freshness_R
