"""The options of the calculator environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class Latency(Section):
    """Seconds a tool call takes: lognormal, so that a few take very long."""

    mean: float = Field(gt=0)
    """Mean of the distribution, seconds."""

    sigma: float = Field(1.0, ge=0)
    """Standard deviation of its logarithm; 0 makes every call take the mean."""


class ExpertErrors(Section):
    """What the scripted expert does wrong on purpose."""

    kind: Literal["recovered", "kept"] = "recovered"
    """`recovered`: an episode begins with a malformed call, which is not to be taught, and goes on rightly.
    `kept`: a well-formed call with a wrong digit or operator, and the episode goes on with its result."""

    rate: float = Field(0.0, ge=0, le=1)
    """Share of episodes (`recovered`) or of calls (`kept`)."""


class Options(Section):
    """`environment.options` of the calculator."""

    train_tasks: int = Field(8000, ge=1)
    """Tasks of the training split."""

    test_tasks: int = Field(1000, ge=1)
    """Held-out tasks."""

    instructions: str = ""
    """A system message before each question; models trained in this environment need none."""

    tool_latency_s: Latency | None = None
    """How slow the tools are; by default they answer at once."""

    expert_errors: ExpertErrors = ExpertErrors()
