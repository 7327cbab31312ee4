"""Learning from tokens that someone else chose."""

from __future__ import annotations

import torch


def cross_entropy(logp_R: torch.Tensor) -> torch.Tensor:
    """Return `-log π` of each token, nats, shape R."""
    return -logp_R
