"""The identity of a set of weights."""

from __future__ import annotations

from typing import Any, NamedTuple

_STEP_BITS = 40


class Version(NamedTuple):
    """Optimizer steps behind a set of weights, on a timeline.

    A new timeline starts at each rollback, so two versions of equal step on different timelines are
    different weights. Versions order by timeline, then step.
    """

    timeline: int
    step: int

    def pack(self) -> int:
        """Return one non-negative int64; packed versions order as versions do."""
        return (self.timeline << _STEP_BITS) | self.step

    @classmethod
    def unpack(cls, packed: int) -> Version:
        """Invert `pack`."""
        return cls(packed >> _STEP_BITS, packed & ((1 << _STEP_BITS) - 1))

    def __str__(self) -> str:
        return f"{self.timeline}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Invert `str`. Raises `ValueError` for anything else."""
        timeline, step = text.split(".")
        return cls(int(timeline), int(step))


def steps_of(packed_T: Any) -> Any:
    """Return the optimizer step of each packed version in an integer array of any kind, in the same kind."""
    return packed_T & ((1 << _STEP_BITS) - 1)
