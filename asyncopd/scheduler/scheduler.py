"""The scheduler: decides what starts, what is fresh enough to learn from, and who trains when.

It is pure: `apply` takes an event and returns commands; no I/O, no clock, no chance but the seed.

Invariants, each held by a test of its name:
- no token trained on a ticket has a lag above max_staleness, and none a lag below 0
- the conservation law holds after every event
- the tickets of a step never exceed the batch size
- every ticket is trained exactly once
- every command is idempotent by its attempt or step
- replaying the events gives an equal scheduler and equal commands
- no deadlock: under any finite reordering, failures and rollbacks, the run ends
"""

from __future__ import annotations

from collections import Counter

from asyncopd.config.scheduler import SchedulerSection
from asyncopd.records import AttemptState
from asyncopd.scheduler import plan
from asyncopd.scheduler.attempts import Attempt
from asyncopd.scheduler.commands import (
    Command,
    FailRun,
    FinishRun,
    PublishWeights,
    ReleasePayloads,
    SaveCheckpoint,
    ScoreAttempt,
    StartAttempt,
    TrainStep,
)
from asyncopd.scheduler.events import AnyEvent
from asyncopd.scheduler.ledger import Ledger
from asyncopd.scheduler.progress import Progress
from asyncopd.scheduler.state import RunState
from asyncopd.scheduler.tasks import TaskOrder
from asyncopd.scheduler.tickets import Group, Tickets
from asyncopd.scheduler.waiting import describe


class Scheduler:
    """One run's scheduler. `task_count` tasks to try, `max_concurrent` episodes at once."""

    def __init__(
        self,
        section: SchedulerSection,
        *,
        steps: int,
        task_count: int,
        seed: int,
        max_concurrent: int,
        checkpoint_every: int,
    ) -> None:
        self._section = section
        self._max_concurrent = max_concurrent
        order = TaskOrder(seed, task_count)
        self._state = RunState(
            section,
            Tickets(order, section.batch_size // section.group_size, section.group_size),
            Progress(steps, section.publish_every, checkpoint_every, plan.reach(section)),
        )

    @property
    def step(self) -> int:
        """Optimizer steps behind the learner's weights."""
        return self._state.progress.step

    @property
    def counts(self) -> dict[AttemptState, int]:
        """Attempts that are still live, by state; trained ones are live until a checkpoint holds them."""
        counts = Counter(attempt.state for attempt in self._state.attempts.live.values())
        return {state: counts[state] for state in AttemptState if state is not AttemptState.DROPPED}

    @property
    def ledger(self) -> Ledger:
        """The balance of attempts and tokens as of the last event."""
        return self._state.balance

    @property
    def payloads(self) -> set[str]:
        """The keys of all payloads that will still be asked for."""
        return {key for attempt in self._state.attempts.live.values() for key in attempt.payloads}

    @property
    def finished(self) -> bool:
        """Whether the end was commanded. Nothing follows it, except after `RolledBack`."""
        return self._state.finished

    def waiting(self) -> list[str]:
        """Return who waits on whom, a sentence each."""
        return describe(self._state, self._max_concurrent)

    def apply(self, event: AnyEvent) -> tuple[Command, ...]:
        """Take note of `event` and return what is to be done now, in order.

        Raises `AssertionError` for an event that cannot follow the earlier ones.
        """
        state = self._state
        state.unscored, state.released = [], []
        state.note(event)
        if state.finished:
            return ()
        commands: list[Command] = [self._score(attempt) for attempt in state.unscored]
        if not state.progress.training:
            commands += self._command_learner()
        if not state.finished and state.stopping is None:
            commands += self._admit()
        if state.released:
            commands.insert(0, ReleasePayloads(keys=tuple(state.released)))
        return tuple(commands)

    def _score(self, attempt: Attempt) -> Command:
        assert attempt.meta is not None
        # A given-up group waits behind all steps: its attempts are only brought to their end.
        step = self._state.progress.steps if attempt.unwanted else self._state.tickets.groups[attempt.group].step
        return ScoreAttempt(attempt=attempt.id, payload=attempt.meta.payload, step=step)

    def _command_learner(self) -> list[Command]:
        """Return what the idle learner is to do; it executes in order."""
        state, progress = self._state, self._state.progress
        commands: list[Command] = []
        if progress.publish_due and state.stopping is None:
            progress.published, progress.republish = progress.version, False
            commands.append(PublishWeights(version=progress.version))
        if progress.checkpoint_due or (state.stopping is not None and progress.step > progress.saving):
            progress.saving = progress.step
            commands.append(SaveCheckpoint(step=progress.step))
        if state.stopping is None and progress.step < progress.steps:
            return commands + self._train()
        if progress.durable == progress.step:
            state.finished = True
            reason = f"all {progress.steps} steps are trained" if state.stopping is None else state.stopping
            commands.append(FinishRun(reason=reason))
        return commands

    def _train(self) -> list[Command]:
        """Return the next step, if its members are ready or can be had by swaps."""
        state, step = self._state, self._state.progress.step
        row = state.tickets.rows.get(step)
        if row is None:
            return []
        for attempt in plan.stale(step, row, self._section):
            state.give_back(attempt, "freshness")
        if all(group.cancelled for group in row):
            state.finished = True
            returns = self._section.max_returns
            return [FailRun(reason=f"every ticket of step {step} came back more than max_returns = {returns} times")]
        pairs = plan.swaps(step, row, state.tickets.since(step + 1), self._section)
        if pairs is None:
            return []
        for unready, substitute in pairs:
            state.tickets.swap(unready, substitute)
        state.progress.training = True
        return [TrainStep(step=step, members=plan.lease(step, row, self._section))]

    def _admit(self) -> list[Command]:
        """Return attempts for vacant tickets, lowest step first, as far as engines are fresh enough."""
        state, progress = self._state, self._state.progress
        newest = state.engines.newest
        commands: list[Command] = []
        if newest is None or state.engines.running == self._max_concurrent:
            return commands
        for step in range(progress.next_step, min(progress.steps, newest.step + progress.reach + 1)):
            for group in state.tickets.row(step):
                for member in group.vacant:
                    if state.engines.running == self._max_concurrent:
                        return commands
                    commands.append(self._start(group, member))
        return commands

    def _start(self, group: Group, member: int) -> Command:
        engine = self._state.engines.least_loaded(group.step - self._state.progress.reach)
        assert engine is not None
        version = self._state.engines.serve(engine)
        ticket = group.tickets[member]
        attempt = ticket.attempt = self._state.attempts.admit(
            group=group.id, member=member, engine=engine, oldest=version.step, max_staleness=self._section.max_staleness
        )
        return StartAttempt(
            attempt=attempt.id,
            task=group.task,
            sample=ticket.sample,
            group=group.id,
            step=group.step,
            min_version=version,
            engine=engine,
            parent=ticket.parent,
        )
