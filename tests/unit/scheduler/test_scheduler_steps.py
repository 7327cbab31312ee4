"""Who trains at a step: swaps, deadlines, returns, freshness, and what follows a step."""

from __future__ import annotations

from typing import Any

import pytest

from asyncopd.records import Version
from asyncopd.scheduler import commands as do
from asyncopd.scheduler import events as on


def members(command: do.Command) -> list[int]:
    assert isinstance(command, do.TrainStep)
    return [member.attempt for member in command.members]


def test_a_step_trains_its_members_in_ticket_order_whatever_order_they_end_in(world: Any) -> None:
    run = world(max_staleness=0, batch_size=4)
    run.start_engine()
    run.complete(2, 0, 3)
    assert members(run.complete(1)[0]) == [0, 1, 2, 3]


def test_an_unready_holder_swaps_with_a_ready_one_within_its_deadline(world: Any) -> None:
    run = world(max_staleness=1, batch_size=2)
    run.start_engine()
    run.complete(0)
    [train] = run.complete(3)
    assert members(train) == [0, 3]
    run.complete(2)
    run.learn()
    assert run.scheduler.waiting()[0] == "step 1 waits for attempts 1 (admitted)"
    assert members(run.complete(1)[-1]) == [2, 1], "the moved holder has the other's place"


def test_a_holder_at_its_deadline_is_waited_for(world: Any) -> None:
    run = world(max_staleness=1, batch_size=1, steps=5)
    run.start_engine()
    run.turn(0)
    [train] = run.complete(1)
    assert members(train) == [1]
    run.learn()
    run.learn()
    run.commit()
    assert run.complete(2) == (), "attempt 0, moved to step 1, began at version 0"
    run.finish(0)
    assert members(run.score(0)[-1]) == [0]


def test_a_deadline_counts_from_the_version_of_the_first_generation(world: Any) -> None:
    run = world(max_staleness=1, batch_size=1, steps=5)
    run.start_engine()
    run.complete(1)
    run.learn()
    run.learn()
    run.commit()
    run.rolling[0].began = Version(0, 1)
    run.turn(0)
    [train] = run.complete(2)
    assert members(train) == [2], "attempt 0 generated nothing at version 0: step 2 is soon enough"


def test_no_swap_is_made_unless_it_completes_the_step(world: Any) -> None:
    run = world(max_staleness=1, batch_size=2)
    run.start_engine()
    run.complete(2)
    run.complete(0)
    assert not run.learner[1:] and members(run.learner[0]) == [0, 2]
    other = world(max_staleness=1, batch_size=3)
    other.start_engine()
    other.complete(4)
    other.complete(2)
    assert members(other.complete(0)[0]) == [0, 4, 2]


def test_a_group_moves_whole(world: Any) -> None:
    run = world(max_staleness=1, batch_size=4, group_size=2)
    run.start_engine()
    run.complete(0, 2, 3, 4)
    assert run.learner == [], "half of group 0 is ready, and half of group 2"
    [train] = run.complete(5)
    assert members(train) == [4, 5, 2, 3]
    assert [member.group for member in train.members] == [2, 2, 1, 1]


def test_a_member_counts_by_its_predicted_freshness(world: Any) -> None:
    run = world(max_staleness=2, batch_size=1)
    run.start_engine()
    run.complete(0, 1)
    for _ in range(3):
        run.learn()
    [train] = run.complete(2)
    assert train.members[0].weight == pytest.approx(1 / (1 + 2 / 2))


def test_an_attempt_that_went_stale_is_dropped_and_its_ticket_retried(world: Any) -> None:
    run = world(max_staleness=2, batch_size=1, steps=6, freshness={"xi": 0.5})
    run.start_engine()
    run.turn(0)
    run.complete(1)
    for _ in range(2):
        run.learn()
    run.commit()
    run.complete(2)
    for _ in range(2):
        run.learn()
    run.learn()
    run.commit()
    run.finish(0)
    commands = run.score(0)
    assert do.ReleasePayloads(keys=("trajectory/0", "scores/0")) in commands
    [retry] = [command for command in commands if isinstance(command, do.StartAttempt) and command.parent == 0]
    assert retry.step == 2 and retry.min_version.step == 2
    assert run.scheduler.ledger.dropped == {"freshness": 1}
    assert members(run.complete(retry.attempt)[-1]) == [retry.attempt]


def test_a_trajectory_that_teaches_nothing_is_ready_unscored_and_still_advances_the_version(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1)
    run.start_engine()
    run.turn(0)
    [train] = run.finish(0, trainable=False)
    assert train.members[0].scores is None
    run.scheduler.apply(on.StepTrained(time=0, step=0, attempts=()))
    assert run.scheduler.step == 1
    assert run.scheduler.ledger.masked == {"infrastructure": 4} and run.scheduler.ledger.holds


def test_after_max_returns_a_ticket_is_cancelled_and_its_step_trains_with_fewer(world: Any) -> None:
    run = world(max_staleness=0, batch_size=2, max_returns=1)
    run.start_engine()
    run.fail(1)
    run.complete(0)
    assert members(run.fail(2)[0]) == [0]


def test_a_group_is_given_up_whole_and_what_is_in_flight_of_it_ends_first(world: Any) -> None:
    run = world(max_staleness=0, batch_size=8, group_size=4, max_returns=0, max_concurrent=8)
    run.start_engine()
    run.complete(0, 4, 5, 6, 7)
    run.turn(1)
    run.finish(1)
    run.turn(2)
    commands = run.fail(3)
    assert commands[0] == do.ReleasePayloads(keys=("trajectory/0", "scores/0"))
    assert members(commands[1]) == [4, 5, 6, 7]
    assert run.scheduler.counts["scoring"] == run.scheduler.counts["rolling"] == 1
    assert run.score(1) == (do.ReleasePayloads(keys=("trajectory/1", "scores/1")),)
    assert run.finish(2) == (do.ReleasePayloads(keys=("trajectory/2",)),)
    assert run.scheduler.ledger.dropped == {"tool_server": 1, "given_up": 3}
    run.scheduler.ledger.check()


def test_a_step_whose_tickets_are_all_cancelled_fails_the_run(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, max_returns=0)
    run.start_engine()
    assert run.fail(0) == (do.FailRun(reason="every ticket of step 0 came back more than max_returns = 0 times"),)
    assert run.scheduler.finished


def test_the_learner_publishes_then_saves_then_trains(world: Any) -> None:
    run = world(max_staleness=1, batch_size=1, steps=4, checkpoint_every=1)
    run.start_engine()
    run.complete(0)
    run.complete(1)
    kinds = [type(command) for command in run.learn()]
    assert kinds == [do.PublishWeights, do.SaveCheckpoint, do.TrainStep]


def test_weights_are_published_at_their_interval_and_at_the_end(world: Any) -> None:
    run = world(max_staleness=1, publish_every=2, batch_size=1, steps=5, checkpoint_every=9)
    run.start_engine()
    published = []
    while run.end is None:
        if run.learner:
            commands = run.learn()
            published += [c.version.step for c in commands if isinstance(c, do.PublishWeights)]
        elif run.commits["student-0"]:
            run.commit()
        else:
            run.complete(min(run.rolling))
    assert published == [2, 4, 5]


def test_payloads_are_released_once_a_checkpoint_after_their_training_is_durable(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, steps=2, checkpoint_every=2)
    run.start_engine()
    run.complete(0)
    run.learn()
    run.learn()
    run.commit()
    run.complete(1)
    run.learn()
    assert run.released == set()
    run.learn()
    commands = run.learn()
    assert commands[0] == do.ReleasePayloads(keys=("trajectory/0", "scores/0", "trajectory/1", "scores/1"))
    assert commands[1] == do.FinishRun(reason="all 2 steps are trained")


def test_a_stop_saves_what_is_trained_and_waits_for_nothing_in_flight(world: Any) -> None:
    run = world(max_staleness=1, batch_size=1, checkpoint_every=9)
    run.start_engine()
    run.complete(0)
    run.complete(1)
    assert run.send(on.StopRequested(time=0, reason="Ctrl-C")) == ()
    assert run.learn() == (do.SaveCheckpoint(step=1),)
    assert run.scheduler.waiting() == ["the end of the run waits for checkpoint 1"]
    assert run.learn()[-1] == do.FinishRun(reason="Ctrl-C")
    assert run.scheduler.finished


def test_a_stop_while_the_learner_is_idle_saves_at_once(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, checkpoint_every=9)
    run.start_engine()
    run.complete(0)
    run.learn()
    run.learn()
    run.commit()
    run.turn(1)
    assert run.send(on.StopRequested(time=0, reason="Ctrl-C")) == (do.SaveCheckpoint(step=1),)
    assert run.learn()[-1] == do.FinishRun(reason="Ctrl-C")
    assert run.finish(1) == (), "the runtime may still tell; nothing is commanded"
    assert run.scheduler.ledger.holds
