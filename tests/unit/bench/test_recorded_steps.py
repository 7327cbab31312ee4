"""A run's directory says which attempts made which step of its weights."""

from __future__ import annotations

import json

import pytest

from asyncopd.bench.replay import recorded_steps
from asyncopd.errors import UserError
from asyncopd.records import AttemptReport, Outcome, TokenCounts, TrajectoryMeta
from asyncopd.runtime.journal import Journal
from asyncopd.runtime.payloads import FilePayloadStore, read_payload
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.scheduler import events


def _lived(attempt):
    meta = TrajectoryMeta(
        attempt=attempt,
        task=f"task-{attempt}",
        domain="d",
        group=attempt // 2,
        tokens=TokenCounts(prompt=10, trainable=5, masked={"overdue": 1}),
        first_step=0,
        last_step=0,
        mean_step=0.0,
        reward=attempt / 10,
        outcome=Outcome.SUCCESS,
        payload=f"trajectory-{attempt}",
    )
    finished = events.RolloutFinished(time=0.0, meta=meta)
    return [finished, events.Scored(time=0.0, attempt=attempt, payload=f"scores-{attempt}")]


def _trained(step, *attempts):
    reports = tuple(
        AttemptReport(
            attempt=attempt, domain="d", trained=5, masked={}, freshness=1.0, lag_mean=0.0, lag_max=0, rollout_drift=0.0
        )
        for attempt in attempts
    )
    return events.StepTrained(time=0.0, step=step, attempts=reports)


@pytest.fixture
def record(tmp_path):
    """Return a function that writes a run of given events and attempts' payloads."""

    async def write(happened, attempts):
        directory = RunDirectory(tmp_path)
        journal = Journal(directory.journal)
        await journal.append(happened)
        await journal.close()
        payloads = FilePayloadStore(directory.payloads)
        for attempt in attempts:
            for kind in ("trajectory", "scores"):
                await payloads.put(f"{kind}-{attempt}", f"{kind} of {attempt}".encode())
                payloads.release(f"{kind}-{attempt}")
        await payloads.close()
        lines = [json.dumps({"step": step, "loss": step / 4}) + "\n" for step in (1, 2)]
        directory.metrics.write_text("".join(lines))
        return directory

    return write


async def test_members_come_in_the_order_they_were_trained_in_with_their_released_payloads(record):
    happened = [*_lived(0), *_lived(1), _trained(0, 1, 0), *_lived(2), _trained(1, 2)]
    first, second = recorded_steps(await record(happened, [0, 1, 2]))
    assert [(member.attempt, member.group, member.reward) for member in first.members] == [(1, 0, 0.1), (0, 0, 0.0)]
    assert read_payload(first.members[0].trajectory) == b"trajectory of 1"
    assert read_payload(second.members[0].scores) == b"scores of 2"
    assert (first.tokens, second.tokens) == (32, 16)
    assert (first.loss, second.loss) == (0.25, 0.5)


async def test_steps_that_were_rolled_back_are_not_among_them(record):
    lived = [event for attempt in range(4) for event in _lived(attempt)]
    back = events.RolledBack(time=0.0, timeline=1, step=1)
    happened = [*lived, _trained(0, 0), _trained(1, 1), back, _trained(1, 2)]
    steps = recorded_steps(await record(happened, range(4)))
    assert [[member.attempt for member in step.members] for step in steps] == [[0], [2]]


async def test_reading_leaves_the_files_of_a_run_as_they_are(record):
    directory = await record([*_lived(0), _trained(0, 0)], [0])
    for path in (directory.journal, directory.payloads, directory.metrics):
        with path.open("ab") as file:
            file.write(b"torn")
    before = directory.journal.read_bytes(), directory.payloads.read_bytes()
    assert len(recorded_steps(directory)) == 1
    assert (directory.journal.read_bytes(), directory.payloads.read_bytes()) == before


async def test_a_step_whose_loss_a_killed_run_did_not_write_is_recorded_all_the_same(record):
    lived = [event for attempt in range(3) for event in _lived(attempt)]
    steps = recorded_steps(await record([*lived, _trained(0, 0), _trained(1, 1), _trained(2, 2)], range(3)))
    assert [step.loss for step in steps] == [0.25, 0.5, None]


async def test_a_payload_that_is_gone_is_named(record):
    directory = await record([*_lived(0), *_lived(1), _trained(0, 0, 1)], [0])
    with pytest.raises(UserError, match="'trajectory-1' is not there"):
        recorded_steps(directory)
