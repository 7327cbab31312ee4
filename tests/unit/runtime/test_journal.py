"""The journal gives back what it was told, whatever tore its last line."""

from __future__ import annotations

import pytest

from asyncopd.errors import UserError
from asyncopd.records import AttemptReport, Outcome, TokenCounts, TrajectoryMeta, Version
from asyncopd.runtime.journal import Journal
from asyncopd.scheduler import events

META = TrajectoryMeta(
    attempt=3,
    task="t",
    domain="d",
    group=1,
    tokens=TokenCounts(prompt=5, trainable=7, masked={"overdue": 2}),
    first_step=0,
    last_step=1,
    mean_step=0.5,
    reward=1.0,
    outcome=Outcome.SUCCESS,
    payload="trajectory-3",
)
REPORT = AttemptReport(
    attempt=3, domain="d", trained=7, masked={}, freshness=0.5, lag_mean=1.0, lag_max=1, rollout_drift=0.01
)
ALL = [
    events.EngineReady(time=1.0, engine="student-0", version=Version(0, 0)),
    events.TurnGenerated(time=2.0, attempt=3, tokens=9, first=Version(0, 0), last=Version(0, 1)),
    events.RolloutFinished(time=3.0, meta=META),
    events.RolloutFailed(time=4.0, attempt=4, reason="engine"),
    events.Scored(time=5.0, attempt=3, payload="scores-3"),
    events.StepTrained(time=6.0, step=0, attempts=(REPORT,)),
    events.CheckpointSaved(time=7.0, step=1),
    events.RolledBack(time=8.0, timeline=1, step=1),
    events.EngineLost(time=9.0, engine="student-0"),
    events.StopRequested(time=10.0, reason="interrupted"),
]


async def _written(path):
    journal = Journal(path)
    await journal.append(ALL)
    await journal.close()
    return path


async def test_every_kind_of_event_comes_back_equal(tmp_path):
    path = await _written(tmp_path / "journal.jsonl")
    journal, read = Journal.reopen(path)
    await journal.close()
    assert read == ALL


@pytest.mark.parametrize("torn", range(1, 12))
async def test_a_last_line_torn_anywhere_is_dropped_and_the_next_event_follows_cleanly(tmp_path, torn):
    path = await _written(tmp_path / "journal.jsonl")
    data = path.read_bytes()
    path.write_bytes(data[:-torn])
    journal, read = Journal.reopen(path)
    assert read == ALL[:-1]
    await journal.append(ALL[-1:])
    await journal.close()
    assert path.read_bytes() == data


async def test_damage_before_the_last_line_is_named_with_its_line(tmp_path):
    path = await _written(tmp_path / "journal.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"type":"Nonsense"}\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(UserError, match=r"journal\.jsonl:3"):
        Journal.reopen(path)
