"""The ledger, the counts, and the sentences for the watchdog."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from asyncopd.records import Version
from asyncopd.scheduler import events as on
from asyncopd.scheduler.ledger import ConservationError, Ledger


def test_the_ledger_follows_tokens_through_every_state(world: Any) -> None:
    run = world(max_staleness=0, batch_size=2, checkpoint_every=1, steps=1)
    run.start_engine()
    run.turn(0)
    assert run.scheduler.ledger.held == 4 and run.scheduler.ledger.attempts["rolling"] == 1
    run.fail(0)
    assert run.scheduler.ledger.dropped_tokens == {"tool_server": 4}
    run.complete(1, 2)
    assert run.scheduler.ledger.held == 8 and run.scheduler.ledger.attempts["leased"] == 2
    run.learn()
    before = run.scheduler.ledger
    assert (before.trained, before.masked, before.held) == (6, {"infrastructure": 2}, 0)
    run.learn()
    run.learn()
    assert run.scheduler.ledger == before, "being durable changes no balance"
    data = run.scheduler.ledger.to_json()
    assert json.loads(json.dumps(data)) == data and data["holds"] is True
    assert data["attempts"]["trained"] == 2 and data["dropped"] == {"tool_server": 1}


def test_the_ledger_says_which_side_is_off() -> None:
    balance = Ledger(
        admitted=2, attempts={"trained": 1, "dropped": 1}, dropped={"lost": 1}, generated=10, trained=5,
        masked={"overdue": 1}, dropped_tokens={"lost": 2}, held=2,
    )  # fmt: skip
    balance.check()
    off = msgspec.structs.replace(balance, admitted=3, generated=11)
    assert not off.holds and len(off.problems) == 2
    with pytest.raises(ConservationError, match=r"3 attempts were admitted, 2 are in some state.*11 tokens, 10 are"):
        off.check()


def test_a_trajectory_that_lost_tokens_shows_at_once(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1)
    run.start_engine()
    run.turn(0)
    run.rolling[0].tokens.pop()
    run.finish(0)
    with pytest.raises(ConservationError, match="engines generated 4 tokens, 3 are accounted for"):
        run.scheduler.ledger.check()


def test_a_learner_that_reports_other_tokens_than_it_got_shows_at_once(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1)
    run.start_engine()
    run.complete(0)
    report = msgspec.structs.replace(run.report(0), trained=9)
    run.scheduler.apply(on.StepTrained(time=0, step=0, attempts=(report,)))
    assert not run.scheduler.ledger.holds


def test_books_that_do_not_balance_end_the_run_at_the_next_checkpoint(world: Any) -> None:
    run = world(max_staleness=0, batch_size=1, checkpoint_every=1)
    run.start_engine()
    run.complete(0)
    report = msgspec.structs.replace(run.report(0), trained=9)
    run.scheduler.apply(on.StepTrained(time=0, step=0, attempts=(report,)))
    with pytest.raises(ConservationError, match="engines generated 4 tokens, 10 are accounted for"):
        run.scheduler.apply(on.CheckpointSaved(time=0, step=1))


def test_counts_are_of_live_attempts_by_state(world: Any) -> None:
    run = world(max_staleness=0, batch_size=3)
    run.start_engine()
    run.turn(0)
    run.complete(1)
    assert run.scheduler.counts == {
        "admitted": 1, "rolling": 1, "scoring": 0, "ready": 1, "leased": 0, "trained": 0,
    }  # fmt: skip
    assert run.scheduler.step == 0


def test_waiting_says_who_waits_on_whom(world: Any) -> None:
    run = world(max_staleness=0, batch_size=3, max_concurrent=2, steps=2)
    waiting = run.scheduler.waiting
    assert waiting() == [
        "step 0 waits for the admission of its attempts",
        "admission waits for an engine to serve version 0.0",
    ]
    run.start_engine()
    assert waiting() == [
        "step 0 waits for attempts 0, 1 (admitted), the admission of 1 attempts",
        "admission waits for one of 2 running attempts to end",
    ]
    run.turn(0)
    run.finish(0)
    run.turn(1)
    assert waiting() == [
        "step 0 waits for attempts 2 (admitted), attempts 1 (rolling), attempts 0 (scoring)",
        "admission of step 1 waits for version 0.1 to be trained",
    ]
    run.score(0)
    run.finish(1)
    run.score(1)
    run.complete(2)
    assert waiting()[0] == "step 0 waits for the learner"
    run.learn()
    assert waiting() == [
        "step 1 waits for the admission of its attempts",
        "admission waits for engine student-0 to load version 0.1",
    ]
    run.learn()
    run.commit()
    run.complete(3, 4, 5)
    run.learn()
    run.learn()
    assert waiting() == ["the end of the run waits for checkpoint 2"]
    run.learn()
    assert run.scheduler.finished and waiting() == []
    assert run.version == Version(0, 2)
