"""Tickets: the rights to be one of the B members of an optimizer step, in blocks of G for groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from asyncopd.records import AttemptState
from asyncopd.scheduler.attempts import Attempt
from asyncopd.scheduler.tasks import TaskOrder


@dataclass
class Ticket:
    """A right, its present holder, and how often holders gave it back. `sample` outlives retries."""

    sample: int
    attempt: Attempt | None = None
    parent: int | None = None
    returns: int = 0

    def vacate(self) -> None:
        """Take the ticket from its holder, for a retry."""
        assert self.attempt is not None
        self.parent, self.attempt = self.attempt.id, None


@dataclass
class Group:
    """The attempts at one task that share a baseline and move whole; `step` is where its tickets are."""

    id: int
    task: int
    step: int
    tickets: list[Ticket]
    cancelled: bool = False

    @property
    def attempts(self) -> list[Attempt]:
        return [ticket.attempt for ticket in self.tickets if ticket.attempt is not None]

    @property
    def vacant(self) -> list[int]:
        """Tickets that want a new attempt."""
        return [] if self.cancelled else [i for i, ticket in enumerate(self.tickets) if ticket.attempt is None]

    @property
    def ready(self) -> bool:
        for ticket in self.tickets:
            if ticket.attempt is None or ticket.attempt.state is not AttemptState.READY:
                return False
        return True

    @property
    def deadline(self) -> float:
        """The last step that may train on all its attempts; infinite while it has none."""
        return min((attempt.deadline for attempt in self.attempts), default=float("inf"))

    def give_up(self) -> list[Attempt]:
        """Cancel its tickets; return the attempts that lose theirs, all unwanted from now on."""
        self.cancelled = True
        abandoned = self.attempts
        for attempt in abandoned:
            attempt.unwanted = True
            self.tickets[attempt.member].vacate()
        return abandoned

    def revive(self) -> None:
        """Forgive all returns, and want its tickets again if they were cancelled."""
        self.cancelled = False
        for ticket in self.tickets:
            ticket.returns = 0


@dataclass
class Tickets:
    """The tickets of all steps issued and not yet forgotten; a step's groups stand in ticket order."""

    order: TaskOrder
    groups_per_step: int
    group_size: int
    rows: dict[int, list[Group]] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    issued: int = 0

    def row(self, step: int) -> list[Group]:
        """Return the groups of `step`, issuing its tickets if they are the next."""
        if step == self.issued:
            first = step * self.groups_per_step
            self.rows[step] = [self._issue(first + i, step) for i in range(self.groups_per_step)]
            self.issued += 1
        return self.rows[step]

    def _issue(self, number: int, step: int) -> Group:
        task, epoch = self.order.place(number)
        tickets = [Ticket(sample=epoch * self.group_size + i) for i in range(self.group_size)]
        group = self.groups[number] = Group(id=number, task=task, step=step, tickets=tickets)
        return group

    def of(self, attempt: Attempt) -> Ticket:
        """Return the ticket that a wanted attempt holds."""
        ticket = self.groups[attempt.group].tickets[attempt.member]
        assert ticket.attempt is attempt, f"attempt {attempt.id} holds no ticket"
        return ticket

    def since(self, step: int) -> Iterator[Group]:
        """Yield the groups of `step` and later, in ticket order."""
        for later in range(step, self.issued):
            yield from self.rows[later]

    def swap(self, one: Group, other: Group) -> None:
        """Exchange the places of two groups."""
        at, to = self.rows[one.step].index(one), self.rows[other.step].index(other)
        self.rows[one.step][at], self.rows[other.step][to] = other, one
        one.step, other.step = other.step, one.step

    def forget(self, step: int) -> list[Group]:
        """Remove and return the groups of all steps before `step`."""
        groups = [group for row in sorted(self.rows) if row < step for group in self.rows.pop(row)]
        for group in groups:
            del self.groups[group.id]
        return groups
