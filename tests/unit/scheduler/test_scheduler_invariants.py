"""Each invariant of the scheduler, in worlds where everything finishes in any order and things go wrong."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncopd.scheduler import commands as do
from asyncopd.scheduler import events as on

runs = st.fixed_dictionaries(
    {
        "group_size": st.sampled_from([1, 2, 3]),
        "groups": st.integers(1, 3),
        "max_staleness": st.sampled_from([0, 1, 2, 4]),
        "steps": st.integers(1, 7),
        "tasks": st.integers(1, 6),
        "engines": st.integers(1, 3),
        "max_concurrent": st.sampled_from([1, 3, 64]),
        "checkpoint_every": st.integers(1, 4),
        "xi": st.sampled_from([0.0, 0.55, 0.9]),
        "late_publish": st.booleans(),
        "failures": st.integers(0, 4),
        "rollbacks": st.integers(0, 3),
        "losses": st.integers(0, 4),
        "stops": st.integers(0, 1),
        "seed": st.integers(0, 2**32 - 1),
    }
)
in_random_worlds = settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def play(world: Any, options: dict[str, Any]) -> Any:
    """Return a world that ran to its end."""
    options = dict(options)
    troubles = {kind: options.pop(kind) for kind in ("failures", "rollbacks", "losses", "stops")}
    groups, seed = options.pop("groups"), options.pop("seed")
    late_publish, xi = options.pop("late_publish"), options.pop("xi")
    options["batch_size"] = groups * options["group_size"]
    options["publish_every"] = options["max_staleness"] + 1 if late_publish else 1
    options["freshness"] = {"xi": xi}
    # As many returns as things can go wrong for one ticket, so that none is cancelled here.
    options["max_returns"] = 50
    return world(**options).run(random.Random(seed), **troubles)


@given(options=runs)
@in_random_worlds
def test_no_token_trained_on_a_ticket_has_a_lag_above_max_staleness_or_below_0(world: Any, options: Any) -> None:
    played = play(world, options)
    bound = options["max_staleness"]
    trained = [command for _, commands in played.log for command in commands if isinstance(command, do.TrainStep)]
    assert all(0 <= lag <= bound for command in trained for lag in played.lags(command))
    assert all(0 < member.weight <= 1 for command in trained for member in command.members)


@given(options=runs)
@in_random_worlds
def test_the_conservation_law_holds_after_every_event(world: Any, options: Any) -> None:
    def checked(self: Any, event: on.AnyEvent) -> Any:
        commands = world.send(self, event)
        ledger = self.scheduler.ledger
        ledger.check()
        assert ledger.generated == self.generated
        return commands

    played = type("CheckedWorld", (world,), {"send": checked})
    finished = play(played, options).scheduler
    assert finished.ledger.attempts["trained"] == options["steps"] * options["groups"] * options["group_size"]


@given(options=runs)
@in_random_worlds
def test_the_tickets_of_a_step_never_exceed_the_batch_size(world: Any, options: Any) -> None:
    size = options["groups"] * options["group_size"]

    def checked(self: Any, event: on.AnyEvent) -> Any:
        commands = world.send(self, event)
        state = self.scheduler._state
        holders = [a for group in state.tickets.groups.values() for a in group.attempts]
        assert all(sum(len(group.tickets) for group in row) == size for row in state.tickets.rows.values())
        assert sorted(a.id for a in holders) == list(state.attempts.live)
        return commands

    played = play(type("CheckedWorld", (world,), {"send": checked}), options)
    assert all(len(command.members) == size for command in played.history)


@given(options=runs)
@in_random_worlds
def test_every_ticket_is_trained_exactly_once(world: Any, options: Any) -> None:
    played = play(world, options)
    assert isinstance(played.end, do.FinishRun)
    assert [command.step for command in played.history] == list(range(options["steps"]))
    orders = [played.ended[member.attempt].order for command in played.history for member in command.members]
    samples = {(order.task, order.sample) for order in orders}
    assert len(samples) == len(orders) == options["steps"] * options["groups"] * options["group_size"]
    for command in played.history:
        groups = [member.group for member in command.members]
        assert all(groups.count(group) == options["group_size"] for group in groups)


@given(options=runs)
@in_random_worlds
def test_every_command_is_idempotent_by_its_attempt_or_step(world: Any, options: Any) -> None:
    played = play(world, options)
    timeline = 0
    once: set[tuple[Any, ...]] = set()
    scored: dict[int, str] = {}
    for event, commands in played.log:
        timeline = event.timeline if isinstance(event, on.RolledBack) else timeline
        for command in commands:
            match command:
                case do.StartAttempt():
                    key: tuple[Any, ...] = ("start", command.attempt)
                case do.TrainStep():
                    key = ("train", timeline, command.step)
                case do.SaveCheckpoint():
                    key = ("save", timeline, command.step)
                case do.ReleasePayloads():
                    key = ("release", timeline, *command.keys)
                case do.ScoreAttempt():
                    assert scored.setdefault(command.attempt, command.payload) == command.payload
                    continue
                case _:
                    continue
            assert key not in once
            once.add(key)


@given(options=runs)
@in_random_worlds
def test_replaying_the_events_gives_an_equal_scheduler_and_equal_commands(world: Any, options: Any) -> None:
    played = play(world, options)
    again = played.new_scheduler()
    for event, commands in played.log:
        assert again.apply(event) == commands
    assert again._state == played.scheduler._state


@given(options=runs)
@in_random_worlds
def test_no_deadlock_and_nothing_is_left_behind(world: Any, options: Any) -> None:
    played = play(world, options)
    assert played.scheduler.finished and played.scheduler.waiting() == []
    assert not played.scheduler._state.attempts.live
    assert played.left_behind == set()


@given(options=runs.map(lambda options: options | {"max_staleness": 0, "late_publish": False}))
@in_random_worlds
def test_without_staleness_training_is_strictly_synchronous(world: Any, options: Any) -> None:
    def checked(self: Any, event: on.AnyEvent) -> Any:
        commands = world.send(self, event)
        for command in commands:
            if isinstance(command, do.StartAttempt):
                assert command.step == command.min_version.step == self.scheduler.step
            if isinstance(command, do.TrainStep):
                assert not self.rolling
                assert {member.weight for member in command.members} == {1.0}
        return commands

    played = play(type("CheckedWorld", (world,), {"send": checked}), options)
    assert {lag for command in played.history for lag in played.lags(command)} == {0}
