"""Trust rules: how far an advantage may act through a ratio."""

from __future__ import annotations

import torch


def unlimited(advantage: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
    """Return `-ρ·A` elementwise: no limit, hence no bias. The gradient flows through ρ."""
    return -log_ratio.exp() * advantage
