"""Tickets, staleness and freshness."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from asyncopd.config.section import Section


class FreshnessSection(Section):
    """`scheduler.freshness`: f = 1/(τ + 1)·exp(−α√D_roll − β√D_sup), w = max(0, f − ξ)/(1 − ξ)."""

    alpha: float = Field(1.0, ge=0)
    """Weight of rollout drift, the root of nats a token."""

    beta: float = Field(1.0, ge=0)
    """Weight of supervision drift."""

    xi: float = Field(0.0, ge=0, lt=1)
    """Samples of freshness at or below this teach nothing."""


class SchedulerSection(Section):
    """`scheduler`: who may start, and who belongs to which step."""

    batch_size: int = Field(32, ge=1)
    """Tickets of an optimizer step (B)."""

    group_size: int = Field(1, ge=1)
    """Attempts at one task that move together (G); divides `batch_size`."""

    max_staleness: int = Field(2, ge=0)
    """Bound on the lag of any trained token, in optimizer steps (η); 0 is synchronous training."""

    max_returns: int = Field(3, ge=0)
    """Times a ticket may come back before it is cancelled."""

    publish_every: int = Field(1, ge=1)
    """Optimizer steps between weight updates; at most `max_staleness + 1`."""

    freshness: FreshnessSection = FreshnessSection()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(f"group_size {self.group_size} does not divide batch_size {self.batch_size}")
        if self.publish_every > self.max_staleness + 1:
            raise ValueError(
                f"publish_every {self.publish_every} is above max_staleness + 1 = {self.max_staleness + 1}: "
                "no attempt could ever start"
            )
        return self
