"""The options of the python environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section
from asyncopd.sandbox import Limits


class Options(Section):
    """`environment.options` of `python`."""

    difficulty: Literal["mixed", "easy", "medium", "hard"] = "mixed"
    """Families of which level."""

    train_tasks: int | None = Field(None, ge=1)
    """Tasks of the training split; by default all there are."""

    test_tasks: int | None = Field(None, ge=1)
    """Held-out tasks; by default all there are."""

    examples: int = Field(3, ge=0, le=10)
    """Examples that the agent is shown."""

    hidden_tests: int = Field(12, ge=1, le=50)
    """Tests that grade."""

    all_or_nothing: bool = False
    """Reward 1 where all hidden tests pass and else 0, rather than the share that passes."""

    shown_characters: int = Field(2000, ge=100, le=100_000)
    """What is shown of a program's output, beginning and end, counted for each of its two outputs."""

    limits: Limits = Limits(output_kib=256)
    """What a program of the agent's may take, and the hidden tests together."""
