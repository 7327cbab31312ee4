"""What a run is called, where it lives and how long it goes on."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from asyncopd.config.section import Section


class RunSection(Section):
    """`run`: identity and length."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run directory where `dir` is not given."""

    dir: Path | None = None
    """The run directory; by default `runs/NAME-DATE-TIME` below the working directory."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Seeds tasks, sampling and initialisation."""

    steps: int = Field(60, ge=1)
    """Optimizer steps."""

    checkpoint_every: int = Field(20, ge=1)
    """Optimizer steps between checkpoints; the last step always makes one."""
