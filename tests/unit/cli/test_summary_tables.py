"""What the terminal shows at the end of a run, whatever happened in it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from asyncopd.cli.console import summary_tables


def shown(summary: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        for table in summary_tables(summary):
            console.print(table)
    return capture.get()


@pytest.fixture
def summary() -> dict[str, Any]:
    return {
        **dict.fromkeys(("student_before", "student_after", "teacher")),
        "wall_seconds": 60.0,
        "training_seconds": 30.0,
        "tokens_per_second": {"rollout": 10.0},
        "staleness": {"mean": 0.5, "p95": 1.0, "max": 1, "bound": 2, "histogram": {"0": 3, "1": 1}},
        "cache": {"hits": 1, "misses": 2},
        "weight_updates": {"count": 2, "pause_seconds": 0.1, "bytes": 5, "dense_bytes": 10},
        "engines": {"student-0": {"requests": 3, "tokens": 30, "moved": 0, "lost": ""}},
        "logprob_diff": {"tokens": 0},
        "loop_lag_p99_ms": 3.0,
        "conservation": {"holds": True},
        "alarms": [],
    }


def test_engines_are_shown_only_where_some_were_lost(summary: dict[str, Any]) -> None:
    assert "engines lost" not in shown(summary)
    summary["engines"]["student-1"] = {"requests": 1, "tokens": 9, "moved": 4, "lost": "engine student-1 died"}
    assert "1 of 2, with 4 turns that moved" in shown(summary)


def test_a_run_whose_updates_no_engine_took_is_shown_too(summary: dict[str, Any]) -> None:
    assert "weight updates" in shown(summary)
    summary["weight_updates"] = {}
    assert "weight updates" not in shown(summary)
