"""The choice of swaps, group by group."""

from __future__ import annotations

from collections.abc import Sequence

from asyncopd.config.scheduler import SchedulerSection
from asyncopd.records import AttemptState, Outcome, TokenCounts, TrajectoryMeta
from asyncopd.scheduler.attempts import Attempt
from asyncopd.scheduler.plan import swaps
from asyncopd.scheduler.tickets import Group, Ticket

SECTION = SchedulerSection(batch_size=2, max_staleness=4)


def group(number: int, step: int, *oldest: int, ready: bool) -> Group:
    """Return a group at `step` whose attempts' tokens are all of the steps given."""
    attempts = [Attempt(number * 10 + i, number, i, "student", first, 4) for i, first in enumerate(oldest)]
    for attempt in attempts:
        if ready:
            attempt.state = AttemptState.READY
            attempt.meta = TrajectoryMeta(
                attempt=attempt.id, task="t", domain="d", group=number, tokens=TokenCounts(prompt=1, trainable=1),
                first_step=attempt.oldest, last_step=attempt.oldest, mean_step=attempt.oldest, reward=0.0,
                outcome=Outcome.SUCCESS, payload="t",
            )  # fmt: skip
    return Group(id=number, task=0, step=step, tickets=[Ticket(sample=i, attempt=a) for i, a in enumerate(attempts)])


def numbers(pairs: Sequence[tuple[Group, Group]] | None) -> list[tuple[int, int]] | None:
    return None if pairs is None else [(one.id, other.id) for one, other in pairs]


def test_the_nearest_deadline_takes_the_nearest_step() -> None:
    row = [group(0, 4, 3, ready=False), group(1, 4, 1, ready=False)]
    later = [group(2, 5, 4, ready=True), group(3, 7, 4, ready=True)]
    assert numbers(swaps(4, row, later, SECTION)) == [(1, 2), (0, 3)]
    assert swaps(4, row, [group(2, 6, 4, ready=True), later[1]], SECTION) is None


def test_a_group_without_any_attempt_has_no_deadline() -> None:
    row = [group(0, 4, ready=False)]
    row[0].tickets.append(Ticket(sample=0))
    assert numbers(swaps(4, row, [group(1, 9, 4, ready=True)], SECTION)) == [(0, 1)]


def test_the_deadline_of_a_group_is_that_of_its_oldest_member() -> None:
    row = [group(0, 4, 3, 1, ready=False)]
    assert numbers(swaps(4, row, [group(1, 5, 4, 4, ready=True)], SECTION)) == [(0, 1)]
    assert swaps(4, row, [group(1, 6, 4, 4, ready=True)], SECTION) is None


def test_a_group_with_a_member_that_would_count_nothing_is_no_substitute() -> None:
    section = SchedulerSection(batch_size=2, group_size=2, max_staleness=4, freshness={"xi": 0.6})
    row = [group(0, 4, 3, 3, ready=False)]
    aged = group(1, 5, 4, 1, ready=True)
    assert swaps(4, row, [aged], section) is None, "at lag 3, f = 0.57"
    assert numbers(swaps(4, row, [aged, group(2, 6, 4, 3, ready=True)], section)) == [(0, 2)]


def test_cancelled_groups_need_no_substitute() -> None:
    row = [group(0, 4, 3, ready=False)]
    row[0].cancelled = True
    assert swaps(4, row, [], SECTION) == []
