"""How the machine is shared."""

from __future__ import annotations

from pydantic import Field

from asyncopd.config.section import Section


class ThreadsSection(Section):
    """`runtime.threads`: compute threads of each role."""

    engine: int = Field(1, ge=1)
    """Of the engine's process."""

    learner: int = Field(1, ge=1)
    """Of the learner's process."""

    teacher: int = Field(1, ge=1)
    """Of the teacher's process."""


class RuntimeSection(Section):
    """`runtime`: one machine, a process a role."""

    threads: ThreadsSection = ThreadsSection()

    watchdog_s: float = Field(120, gt=0)
    """Seconds without an event after which the run says who waits on whom."""
