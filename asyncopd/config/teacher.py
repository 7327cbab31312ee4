"""The teacher, and what it is asked."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from asyncopd.config.model import ModelSection


class TeacherSection(ModelSection):
    """`teacher`: a model that scores finished segments."""

    use: str = "torch"
    """An entry point of the group `asyncopd.teachers`, or `module:Class`."""

    temperature: float = Field(1.0, gt=0)
    """Scores are log-probs of softmax(logits / temperature)."""

    batch_tokens: int = Field(8192, ge=1)
    """Tokens of one forward pass, sequences laid end to end."""

    options: dict[str, Any] = {}
    """Given to the teacher's constructor as they are."""
