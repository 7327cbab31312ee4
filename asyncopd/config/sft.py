"""Supervised fine-tuning: the cold start."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from asyncopd.config.section import Section


class InitialiseSection(Section):
    """`initialise`: a function that writes a new model into the directory `student.model`, if none is there."""

    use: str = Field(pattern=r"^[\w.]+:\w+$")
    """`module:function`; it is called with the directory, and the options by name."""

    options: dict[str, Any] = {}
    """Given to the function as they are."""


class DemonstrationsSection(Section):
    """`demonstrations`: episodes of the environment's expert, whose errors are options of the environment."""

    episodes: int = Field(4000, ge=1)
    """Episodes to record, one for each task until the tasks are used up; longer trainings repeat them."""

    train_on_errors: bool = False
    """Whether what the expert does wrong on purpose is taught (to weaken a student) or only seen."""


class StopSection(Section):
    """`stop`: end as soon as measured success has risen, or fallen, to `success`."""

    success: float = Field(gt=0, le=1)
    """Share of the tasks solved."""

    every: int = Field(5, ge=1)
    """Steps between measurements."""

    tasks: int = Field(200, ge=1)
    """Training-split tasks of one measurement, so that the held-out ones stay unseen."""
