"""Supervised fine-tuning: the cold start."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class DemonstrationsSection(Section):
    """`demonstrations`: episodes of an expert."""

    agent: Literal["expert"] = "expert"
    """The environment's scripted expert."""

    error_rate: float = Field(0.0, ge=0, le=1)
    """Share of episodes that begin with a wrong call and the recovery from it."""

    train_on_errors: bool = False
    """Whether the wrong calls are trained on (to weaken a student) or only seen."""

    epochs_seed: int = Field(0, ge=0)
    """Seeds the order and the errors."""


class StopSection(Section):
    """`stop`: end as soon as measured success reaches `success`."""

    success: float = Field(gt=0, le=1)
    every: int = Field(5, ge=1)
    """Steps between measurements."""

    tasks: int = Field(200, ge=1)
    """Training-split tasks of one measurement, so that the held-out ones stay unseen."""
