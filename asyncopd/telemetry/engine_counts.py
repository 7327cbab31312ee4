"""What each engine of a run did, by its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineCounts:
    """`requests` it answered with `tokens`, its dead ones' included; `moved` went on elsewhere.

    `lost` says why it serves no more, and is empty while it does.
    """

    requests: int = 0
    tokens: int = 0
    moved: int = 0
    lost: str = ""

    def followed_by(self, later: EngineCounts | None) -> EngineCounts:
        """Return what it did together with its namesake, if a resumed run has one."""
        if later is None:
            return self
        return EngineCounts(
            self.requests + later.requests, self.tokens + later.tokens, self.moved + later.moved, later.lost
        )
