"""Which runtime, and how the machine is shared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class ThreadsSection(Section):
    """`runtime.threads`: compute threads of each role."""

    engine: int = Field(1, ge=1)
    learner: int = Field(1, ge=1)
    teacher: int = Field(1, ge=1)


class RuntimeSection(Section):
    """`runtime`: where the roles live."""

    use: Literal["local"] = "local"
    threads: ThreadsSection = ThreadsSection()

    watchdog_s: float = Field(120, gt=0)
    """Seconds without an event after which the run says who waits on whom."""
