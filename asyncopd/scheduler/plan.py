"""The batch plan: who trains at a step, with what predicted weight, and who swaps places for it.

Legend: N attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from asyncopd.config.scheduler import SchedulerSection
from asyncopd.records import AttemptState
from asyncopd.scheduler.attempts import Attempt
from asyncopd.scheduler.commands import Member
from asyncopd.scheduler.tickets import Group
from asyncopd.signals.freshness import freshness, weight


def predicted_weights(lag_N: npt.ArrayLike, section: SchedulerSection) -> npt.NDArray[np.float64]:
    """Return the weights expected of samples of mean lag `lag_N`, their drift unknown: f = 1/(τ + 1)."""
    f_N = freshness(lag_N, section.max_staleness, 0.0, 0.0, section.freshness)
    return weight(f_N, section.freshness.xi)


def weights_at(step: int, attempts: Sequence[Attempt], section: SchedulerSection) -> npt.NDArray[np.float64]:
    """Return the weights expected of finished attempts if they train at `step`."""
    return predicted_weights(step - np.array([attempt.mean_step for attempt in attempts]), section)


def reach(section: SchedulerSection) -> int:
    """Return how many steps ahead of its weights an attempt may start.

    That is the greatest lag within `max_staleness` expected to count at all: what would be dropped as
    stale at its own step is not begun.
    """
    counts = predicted_weights(np.arange(section.max_staleness + 1), section) > 0
    return int(np.flatnonzero(counts).max())


def stale(step: int, row: Sequence[Group], section: SchedulerSection) -> list[Attempt]:
    """Return the ready attempts of `row`, the groups of `step`, that would count nothing there."""
    ready = [attempt for group in row for attempt in group.attempts if attempt.state is AttemptState.READY]
    return [ready[i] for i in np.flatnonzero(weights_at(step, ready, section) == 0)]


def swaps(
    step: int, row: Sequence[Group], later: Iterable[Group], section: SchedulerSection
) -> list[tuple[Group, Group]] | None:
    """Return the exchanges that make all of `row`, the groups of `step`, ready; None where it cannot be.

    Each pairs an unready group with a ready one of a later step that is within the former's deadline.
    """
    unready = [group for group in row if not group.cancelled and not group.ready]
    if not unready:
        return []
    ready = [group for group in later if group.ready]
    if len(ready) < len(unready):
        return None
    unready.sort(key=lambda group: (group.deadline, group.id))
    weights_N = weights_at(step, [attempt for group in ready for attempt in group.attempts], section)
    counts = (weights_N.reshape(len(ready), -1) > 0).all(axis=1)
    fresh = [ready[i] for i in np.flatnonzero(counts)]
    # Both rise, by deadline and by step: if this pairing breaks a deadline, so does every other.
    pairs = list(zip(unready, fresh, strict=False))
    complete = len(pairs) == len(unready) and all(substitute.step <= group.deadline for group, substitute in pairs)
    return pairs if complete else None


def lease(step: int, row: Sequence[Group], section: SchedulerSection) -> tuple[Member, ...]:
    """Lease every attempt of `row`, which is ready, to `step`; return the members in ticket order."""
    attempts = [attempt for group in row for attempt in group.attempts]
    return tuple(
        _member(step, attempt, float(expected))
        for attempt, expected in zip(attempts, weights_at(step, attempts, section), strict=True)
    )


def _member(step: int, attempt: Attempt, expected: float) -> Member:
    assert attempt.meta is not None and attempt.state is AttemptState.READY
    assert attempt.newest <= step <= attempt.deadline, f"attempt {attempt.id} cannot train at step {step}"
    attempt.state = AttemptState.LEASED
    return Member(
        attempt=attempt.id,
        group=attempt.group,
        domain=attempt.meta.domain,
        reward=attempt.meta.reward,
        trajectory=attempt.meta.payload,
        scores=attempt.scores,
        weight=expected,
    )
