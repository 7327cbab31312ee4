"""Rollbacks, late events, and what the scheduler refuses to believe."""

from __future__ import annotations

import random
from typing import Any

import pytest

from asyncopd.records import Version
from asyncopd.scheduler import commands as do
from asyncopd.scheduler import events as on


def roll_back(run: Any) -> tuple[do.Command, ...]:
    """Roll back without any event being late, engines as they were."""

    class Quiet(random.Random):
        def random(self) -> float:
            return 1.0

    return run.roll_back(Quiet())


@pytest.fixture
def busy(world: Any) -> Any:
    """A run at step 3 of which step 2 is durable: 3 is being trained, and others roll, wait for scores or are ready."""
    run = world(max_staleness=2, batch_size=2, checkpoint_every=2, steps=6)
    run.start_engine()
    run.complete(0, 1)
    for step in range(3):
        first = 2 * step + 2
        while any(command for command in run.learner if not isinstance(command, do.TrainStep)) or (
            run.learner and run.scheduler.step <= step
        ):
            run.learn()
        while run.commits["student-0"]:
            run.commit()
        run.complete(first, first + 1)
    while run.learner and run.scheduler.step < 3:
        run.learn()
    return run


def test_what_was_trained_since_is_ready_again_on_its_old_tickets(busy: Any) -> None:
    trained = [command for _, commands in busy.log for command in commands if isinstance(command, do.TrainStep)]
    assert [command.step for command in trained] == [0, 1, 2, 3] and busy.durable == 2
    commands = roll_back(busy)
    assert do.PublishWeights(version=Version(1, 2)) in commands
    [train] = [command for command in commands if isinstance(command, do.TrainStep)]
    assert train == trained[2], "the same members at the same step, and their lag is still k − step"
    busy.learn()
    assert [c for c in busy.learn() if isinstance(c, do.TrainStep)] == [trained[3]]


def test_rolling_attempts_are_dropped_and_their_tickets_issued_again(busy: Any) -> None:
    rolling = {number: rollout.order for number, rollout in busy.rolling.items()}
    assert {order.step for order in rolling.values()} == {4, 5}
    assert not [command for command in roll_back(busy) if isinstance(command, do.StartAttempt)], "engines are forgotten"
    busy.learn()
    retries = [command for command in busy.commit() if isinstance(command, do.StartAttempt)]
    assert [retry.parent for retry in retries] == [n for n, order in rolling.items() if order.step <= 2 + 2]
    for retry in retries:
        order = rolling[retry.parent]
        assert (retry.task, retry.sample, retry.group) == (order.task, order.sample, order.group)
        assert retry.min_version == Version(1, 2)
    assert busy.scheduler.ledger.dropped == {"rollback": len(rolling)}


def test_attempts_in_scoring_are_scored_afresh(busy: Any) -> None:
    number = min(busy.rolling)
    busy.turn(number)
    busy.finish(number)
    asked = [command for command in roll_back(busy) if isinstance(command, do.ScoreAttempt)]
    assert [command.attempt for command in asked] == [number]


def test_a_rollback_does_not_count_as_a_return(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, max_returns=0)
    run.start_engine()
    for number in range(3):
        assert list(run.rolling) == [number]
        roll_back(run)
        run.learn()
        run.commit()
    assert run.end is None


def test_a_checkpoint_whose_event_was_lost_counts_as_durable(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, steps=2, checkpoint_every=1)
    run.start_engine()
    run.complete(0)
    run.learn()
    commands = run.send(on.RolledBack(time=0, timeline=1, step=1))
    assert commands[0] == do.ReleasePayloads(keys=("trajectory/0", "scores/0"))


def test_a_run_that_ended_early_goes_on_after_a_rollback(world: Any) -> None:
    stopped = world(max_staleness=0, batch_size=1)
    stopped.start_engine()
    stopped.send(on.StopRequested(time=0, reason="Ctrl-C"))
    failed = world(max_staleness=0, batch_size=1, max_returns=0)
    failed.start_engine()
    failed.fail(0)
    for run in (stopped, failed):
        assert run.scheduler.finished and run.end is not None
        roll_back(run)
        assert not run.scheduler.finished
        run.learn()
        [order] = run.commit()
        run.complete(order.attempt)
        run.learn()
        assert run.scheduler.step == 1


def test_late_events_of_dropped_attempts_are_tolerated_once(world: Any) -> None:
    run = world(max_staleness=0, batch_size=2)
    run.start_engine()
    run.turn(0)
    rollout = run.rolling[0]
    roll_back(run)
    version = Version(0, 0)
    assert run.send(on.TurnGenerated(time=0, attempt=0, tokens=5, first=version, last=version)) == ()
    assert run.scheduler.ledger.dropped_tokens == {"rollback": 9}
    finished = on.RolloutFinished(time=0, meta=run.meta(rollout, "trajectory/0", True))
    assert run.send(finished) == (do.ReleasePayloads(keys=("trajectory/0",)),)
    assert run.send(on.RolloutFailed(time=0, attempt=1, reason="aborted")) == ()
    run.scheduler.ledger.check()
    for event in (finished, on.RolloutFailed(time=0, attempt=1, reason="aborted")):
        with pytest.raises(AssertionError, match="has ended for good"):
            run.scheduler.apply(event)


def test_both_answers_of_a_teacher_asked_twice_are_tolerated(world: Any) -> None:
    run = world(max_staleness=0, batch_size=2, steps=1)
    run.start_engine()
    run.turn(0)
    run.finish(0)
    roll_back(run)
    run.score(0)
    assert run.send(on.Scored(time=0, attempt=0, payload="scores/0")) == ()
    with pytest.raises(AssertionError, match="nobody asked"):
        run.scheduler.apply(on.Scored(time=0, attempt=0, payload="scores/0"))


def test_the_answer_that_is_not_kept_is_released(world: Any) -> None:
    run = world(max_staleness=0, batch_size=2, steps=1)
    run.start_engine()
    run.turn(0)
    run.finish(0)
    roll_back(run)
    run.score(0)
    again = on.Scored(time=0, attempt=0, payload="scores/0/again")
    assert run.send(again) == (do.ReleasePayloads(keys=("scores/0/again",)),)


def test_a_trajectory_waits_for_the_last_answer_to_it(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, steps=1)
    run.start_engine()
    run.turn(0)
    run.finish(0)
    roll_back(run)
    run.score(0)
    for _ in range(3):
        run.learn()
    run.learn()
    assert isinstance(run.end, do.FinishRun) and run.released == set()


EVENTS: dict[str, on.AnyEvent] = {
    "was never started": on.RolloutFailed(time=0, attempt=9, reason="lost"),
    "is ready and generates": on.TurnGenerated(time=0, attempt=0, tokens=1, first=Version(0, 0), last=Version(0, 0)),
    "is ready and fails": on.RolloutFailed(time=0, attempt=0, reason="lost"),
    "nobody asked": on.Scored(time=0, attempt=1, payload="scores/1"),
    "step 0 is trained, but": on.StepTrained(time=0, step=0, attempts=()),
    "checkpoint 1 is saved, but": on.CheckpointSaved(time=0, step=1),
    "timeline 0 does not follow": on.RolledBack(time=0, timeline=0, step=0),
    "step 1 is not between": on.RolledBack(time=0, timeline=1, step=1),
}


@pytest.mark.parametrize("complaint", EVENTS)
def test_an_event_that_cannot_follow_is_refused(world: Any, complaint: str) -> None:
    run = world(max_staleness=0, batch_size=2)
    run.start_engine()
    run.complete(0)
    with pytest.raises(AssertionError, match=complaint):
        run.scheduler.apply(EVENTS[complaint])


def test_an_attempt_served_by_weights_older_than_it_asked_for_is_refused(world: Any) -> None:
    run = world(max_staleness=1, batch_size=1)
    run.start_engine()
    run.complete(0)
    run.learn()
    run.learn()
    [order] = run.commit()
    old = Version(0, 0)
    with pytest.raises(AssertionError, match=r"was served by 0\.0, below step 1"):
        run.scheduler.apply(on.TurnGenerated(time=0, attempt=order.attempt, tokens=1, first=old, last=old))


def test_a_learner_that_forgets_a_member_is_refused(world: Any) -> None:
    run = world(max_staleness=0, batch_size=2)
    run.start_engine()
    run.complete(0, 1)
    with pytest.raises(AssertionError, match="attempt 1 was leased, and the learner does not report it"):
        run.scheduler.apply(on.StepTrained(time=0, step=0, attempts=(run.report(0),)))
