"""What the student minimises."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from asyncopd.config.section import Section


class ObjectiveSection(Section):
    """`objective`: a preset and its options."""

    use: str = "reverse_kl_topk"
    """A preset's name (`reverse_kl_topk`, `reverse_kl_mc`, `reverse_kl_head_tail`, `forward_kl`), an entry point of the
    group `asyncopd.objectives`, or `module:Class`."""

    width: int = Field(64, ge=1)
    """Entries of the support at each position; the generated token is one of those of `reverse_kl_mc`."""

    distill_temperature: float = Field(1.0, gt=0)
    """Both policies are compared as softmax(logits / temperature)."""

    options: dict[str, Any] = {}
    """Of the preset: `drift`, the weight of KL(π‖μ) on stale tokens; of `reverse_kl_topk` also `support`, `teacher` or
    `student` (whose likeliest tokens); of `reverse_kl_head_tail` also `tail`, how many entries are draws."""
