"""What the scheduler knows: attempts, tickets, engines and progress, as the events so far leave them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from asyncopd.config.scheduler import SchedulerSection
from asyncopd.records import AttemptReport, AttemptState, TrajectoryMeta
from asyncopd.scheduler import events as on
from asyncopd.scheduler.attempts import Attempt, Attempts
from asyncopd.scheduler.engines import Engines
from asyncopd.scheduler.ledger import Books, Ledger
from asyncopd.scheduler.progress import Progress
from asyncopd.scheduler.tickets import Group, Tickets


@dataclass
class RunState:
    """Takes note of events; decides nothing but what follows from one at once.

    unscored  attempts that the last event left to be scored, to be taken by whoever commands it
    released  payload keys that nobody needs any more, likewise
    """

    section: SchedulerSection
    tickets: Tickets
    progress: Progress
    attempts: Attempts = field(default_factory=Attempts)
    books: Books = field(default_factory=Books)
    engines: Engines = field(default_factory=Engines)
    finished: bool = False
    stopping: str | None = None
    unscored: list[Attempt] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    @property
    def balance(self) -> Ledger:
        """The conservation law as of the last event."""
        return self.books.balance(self.attempts.admitted, self.attempts.live.values())

    def note(self, event: on.AnyEvent) -> None:
        """Take note of `event`. Raises `AssertionError` if it cannot follow the earlier ones.

        The conservation law is checked at every checkpoint; `ConservationError` is such an error.
        """
        match event:
            case on.EngineReady():
                self._engine_ready(event)
            case on.EngineLost():
                self.engines.versions.pop(event.engine, None)
            case on.TurnGenerated():
                self._turn_generated(event)
            case on.RolloutFinished():
                self._rollout_finished(event.meta)
            case on.RolloutFailed():
                self._rollout_failed(event)
            case on.Scored():
                self._scored(event)
            case on.StepTrained():
                self._step_trained(event.step, {report.attempt: report for report in event.attempts})
            case on.CheckpointSaved():
                self.progress.save(event.step)
                self._settle(event.step)
                self.balance.check()
            case on.RolledBack():
                self._rolled_back(event)
            case on.StopRequested():
                self.stopping = self.stopping or event.reason
            case _:
                assert_never(event)

    def _engine_ready(self, event: on.EngineReady) -> None:
        assert event.version <= self.progress.version, f"{event} is ahead of the learner"
        if event.engine not in self.engines.versions and event.version < self.progress.published:
            self.progress.republish = True
        if event.version.timeline == self.progress.timeline:
            self.engines.ready(event.engine, event.version)

    def _turn_generated(self, event: on.TurnGenerated) -> None:
        attempt = self.attempts.find(event.attempt)
        self.books.generated += event.tokens
        if attempt.interrupted:
            self.books.dropped_tokens[attempt.dropped] += event.tokens
        else:
            attempt.generate(event.tokens, event.first, event.last)

    def _rollout_finished(self, meta: TrajectoryMeta) -> None:
        attempt = self.attempts.find(meta.attempt)
        if attempt.interrupted:
            attempt.interrupted = False
            self.attempts.forget(attempt)
            self.released.append(meta.payload)
            return
        attempt.finish(meta)
        self.engines.release(attempt.engine)
        if attempt.unwanted:
            self._drop(attempt, "given_up")
        elif attempt.state is AttemptState.SCORING:
            self._score(attempt)

    def _rollout_failed(self, event: on.RolloutFailed) -> None:
        attempt = self.attempts.find(event.attempt)
        if attempt.interrupted:
            attempt.interrupted = False
            self.attempts.forget(attempt)
            return
        assert attempt.running, f"attempt {attempt.id} is {attempt.state} and fails: {event.reason}"
        self.engines.release(attempt.engine)
        self.give_back(attempt, event.reason)

    def _scored(self, event: on.Scored) -> None:
        attempt = self.attempts.find(event.attempt)
        assert attempt.scores_due, f"nobody asked for {event}"
        attempt.scores_due -= 1
        if attempt.state is AttemptState.SCORING:
            attempt.scores, attempt.state = event.payload, AttemptState.READY
            if attempt.unwanted:
                self._drop(attempt, "given_up")
        else:
            # A rollback asked again, and both answers came.
            if event.payload != attempt.scores:
                self.released.append(event.payload)
            if attempt.id in self.attempts.late:
                self._end(attempt)

    def _step_trained(self, step: int, reports: dict[int, AttemptReport]) -> None:
        self.progress.train(step)
        for attempt in [attempt for group in self.tickets.rows[step] for attempt in group.attempts]:
            attempt.train(reports.pop(attempt.id, None))
        assert not reports, f"attempts {sorted(reports)} are no members of step {step}"

    def _rolled_back(self, event: on.RolledBack) -> None:
        untouched = self.progress.next_step
        self.progress.roll_back(event.timeline, event.step)
        self._settle(event.step)
        self.finished, self.stopping = False, None
        self.engines.forget()
        for attempt in list(self.attempts.live.values()):
            if attempt.running:
                self._interrupt(attempt)
            elif attempt.state is AttemptState.SCORING:
                self._score(attempt)
            elif attempt.state is not AttemptState.READY:
                attempt.reopen()
        for group in self.tickets.since(untouched):
            group.revive()

    def _settle(self, step: int) -> None:
        """Close the books on all that was trained before version `step`."""
        for attempt in [attempt for group in self.tickets.forget(step) for attempt in group.attempts]:
            self.books.settle(attempt)
            self._end(attempt)

    def _score(self, attempt: Attempt) -> None:
        attempt.scores_due += 1
        self.unscored.append(attempt)

    def _interrupt(self, attempt: Attempt) -> None:
        """Drop an attempt that a rollback ended; its ticket is free again, and did not count as returned."""
        if not attempt.unwanted:
            self.tickets.of(attempt).vacate()
        attempt.interrupted = True
        self._drop(attempt, "rollback")

    def give_back(self, attempt: Attempt, reason: str) -> None:
        """Drop an attempt and keep its ticket for a retry, or give its group up after too many."""
        self._drop(attempt, reason)
        if attempt.unwanted:
            return
        ticket = self.tickets.of(attempt)
        ticket.vacate()
        ticket.returns += 1
        if ticket.returns > self.section.max_returns:
            self._give_up(self.tickets.groups[attempt.group])

    def _give_up(self, group: Group) -> None:
        """Cancel a group. What is in flight of it goes on to its end: nothing can be taken from a busy worker."""
        for attempt in group.give_up():
            if attempt.state is AttemptState.READY:
                self._drop(attempt, "given_up")

    def _drop(self, attempt: Attempt, reason: str) -> None:
        attempt.state, attempt.dropped = AttemptState.DROPPED, reason
        self.books.drop(attempt)
        self._end(attempt)

    def _end(self, attempt: Attempt) -> None:
        """Stop counting an attempt; release its payloads unless the teacher may still be reading them."""
        self.attempts.forget(attempt)
        if not attempt.scores_due:
            self.released.extend(attempt.payloads)
