"""Who may start, in what order, on which engine, at which task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from asyncopd.records import Version
from asyncopd.scheduler import commands as do
from asyncopd.scheduler import events as on
from asyncopd.scheduler.engines import Engines
from asyncopd.scheduler.tasks import TaskOrder


def started(commands: Sequence[do.Command]) -> list[do.StartAttempt]:
    return [command for command in commands if isinstance(command, do.StartAttempt)]


def test_attempts_start_for_tickets_of_steps_within_max_staleness_of_the_loaded_version(world: Any) -> None:
    run = world(max_staleness=1, batch_size=2)
    first = started(run.start_engine())
    assert [order.step for order in first] == [0, 0, 1, 1]
    assert {order.min_version for order in first} == {Version(0, 0)}
    run.complete(0, 1)
    assert not started(run.learn()), "a trained step opens nothing before its weights are loaded"
    run.learn()
    assert [order.step for order in started(run.commit())] == [2, 2]


def test_the_lowest_step_starts_first_and_a_retry_before_later_steps(world: Any) -> None:
    run = world(max_staleness=2, batch_size=2, max_concurrent=3)
    assert [order.step for order in started(run.start_engine())] == [0, 0, 1]
    [retry] = started(run.fail(1))
    assert (retry.step, retry.parent) == (0, 1)
    run.turn(0)
    assert [order.step for order in started(run.finish(0))] == [1], "scoring frees the place of a rollout"


def test_a_retry_inherits_task_sample_and_group_and_names_its_parent(world: Any) -> None:
    run = world(max_staleness=0, batch_size=4, group_size=2)
    orders = {order.attempt: order for order in started(run.start_engine())}
    [retry] = started(run.fail(2))
    assert retry.attempt == 4 and retry.parent == 2
    for name in ("task", "sample", "group", "step"):
        assert getattr(retry, name) == getattr(orders[2], name)
    [again] = started(run.fail(4))
    assert again.parent == 4


def test_a_group_takes_its_tickets_of_one_step_and_one_task(world: Any) -> None:
    orders = started(world(max_staleness=1, batch_size=6, group_size=3).start_engine())
    for group in range(4):
        members = [order for order in orders if order.group == group]
        assert len(members) == 3
        assert len({(order.step, order.task) for order in members}) == 1
        assert len({order.sample for order in members}) == 3


def test_the_least_loaded_engine_serves_and_an_older_one_only_what_it_may(world: Any) -> None:
    run = world(max_staleness=0, batch_size=4, engines=2)
    assert len(started(run.start_engine("student-0"))) == 4
    run.start_engine("student-1")
    assert [order.engine for order in started(run.fail(0))] == ["student-1"]
    run.complete(1, 2, 3, 4)
    run.learn()
    run.learn()
    orders = started(run.commit("student-1"))
    assert {order.engine for order in orders} == {"student-1"}, "student-0 still serves version 0"
    run.commit("student-0")
    assert [order.engine for order in started(run.fail(5))] == ["student-0"]


def test_of_equally_loaded_engines_the_newest_serves() -> None:
    engines = Engines()
    engines.ready("first", Version(0, 1))
    engines.ready("second", Version(0, 2))
    assert engines.least_loaded(oldest=1) == "second"
    assert engines.serve("second") == Version(0, 2)
    assert engines.least_loaded(oldest=1) == "first"
    assert engines.least_loaded(oldest=2) == "second", "however loaded, no older one will do"
    assert engines.least_loaded(oldest=3) is None


def test_nothing_starts_on_a_lost_engine(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1)
    run.start_engine()
    run.lose_engine("student-0")
    assert run.scheduler.waiting()[-1] == "admission waits for an engine to serve version 0.0"
    assert len(started(run.start_engine())) == 1


def test_an_engine_that_comes_back_behind_gets_the_weights_again(world: Any) -> None:
    run = world(max_staleness=1, publish_every=2, batch_size=1, steps=6)
    run.start_engine()
    for number in (0, 1):
        run.complete(number)
        run.learn()
    run.learn()
    run.commit()
    assert run.engines["student-0"] == Version(0, 2)
    run.lose_engine("student-0")
    assert run.start_engine() == (do.PublishWeights(version=Version(0, 2)),)


def test_an_engine_never_goes_back(world: Any) -> None:
    run = world(max_staleness=1, batch_size=1)
    run.start_engine()
    run.complete(0)
    run.learn()
    run.learn()
    run.commit()
    with pytest.raises(AssertionError, match=r"served version 0\.1 and now says 0\.0"):
        run.scheduler.apply(on.EngineReady(time=0, engine="student-0", version=Version(0, 0)))
    with pytest.raises(AssertionError, match="ahead of the learner"):
        run.scheduler.apply(on.EngineReady(time=0, engine="student-0", version=Version(0, 2)))


def test_what_would_be_stale_at_its_own_step_is_not_begun(world: Any) -> None:
    run = world(max_staleness=2, publish_every=3, batch_size=1, freshness={"xi": 0.6})
    assert [order.step for order in started(run.start_engine())] == [0, 1], "at lag 2, f = 0.5"
    run.complete(0)
    assert not [command for command in run.learn() if isinstance(command, do.PublishWeights)]
    run.complete(1)
    run.learn()
    assert run.learner == [do.PublishWeights(version=Version(0, 2)), do.SaveCheckpoint(step=2)], "before its interval"


def test_tasks_come_in_a_new_permutation_each_epoch_and_never_with_the_same_sample(world: Any) -> None:
    run = world(max_staleness=4, batch_size=6, group_size=2, steps=5, tasks=5)
    orders = started(run.start_engine())
    groups = [order.task for order in orders[::2]]
    assert sorted(groups[:5]) == sorted(groups[5:10]) == sorted(groups[10:15]) == list(range(5))
    assert len({tuple(groups[i : i + 5]) for i in (0, 5, 10)}) > 1
    assert len({(order.task, order.sample) for order in orders}) == len(orders) == 30
    assert started(world(max_staleness=4, batch_size=6, group_size=2, steps=5, tasks=5).start_engine()) == orders


def test_the_order_of_tasks_is_the_same_on_every_machine_and_moves_with_the_seed() -> None:
    order = TaskOrder(seed=7, count=8)
    known = [4, 1, 6, 3, 2, 7, 5, 0]
    assert [order.place(group) for group in range(8)] == [(task, 0) for task in known]
    assert [TaskOrder(seed=8, count=8).place(group)[0] for group in range(8)] != known
