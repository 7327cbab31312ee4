"""How success is measured."""

from __future__ import annotations

from pydantic import Field

from asyncopd.config.section import Section


class EvaluationSection(Section):
    """`evaluation`: held-out tasks before and after training."""

    tasks: int = Field(200, ge=0)
    """Held-out tasks; 0 measures nothing."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""

    max_retries: int = Field(3, ge=0)
    """Further tries of a task whose episode came to nothing through no fault of the agent."""

    teacher: bool = True
    """Whether the teacher is measured too."""
