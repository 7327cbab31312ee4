"""What the student minimises."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from asyncopd.config.section import Section


class ObjectiveSection(Section):
    """`objective`: a preset and its options."""

    use: str = "reverse_kl_topk"
    """A preset's name, an entry point of the group `asyncopd.objectives`, or `module:Class`."""

    width: int = Field(64, ge=1)
    """Entries of the support at each position, where the preset has a choice."""

    distill_temperature: float = Field(1.0, gt=0)
    """Both policies are compared as softmax(logits / temperature)."""

    options: dict[str, Any] = {}
    """Given to the preset as they are."""
