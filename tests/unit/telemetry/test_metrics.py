"""Busy time is the union of activities; lag is summarised over tokens."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncopd.records import PublishReport, Version
from asyncopd.telemetry.metrics import BusyClock, LoopLag, Metrics


def test_overlapping_activities_count_once():
    now = [0.0]
    clock = BusyClock(lambda: now[0])
    with clock.busy():
        now[0] = 1.0
        with clock.busy():
            now[0] = 3.0
        now[0] = 4.0
        assert clock.seconds == 4.0
    now[0] = 10.0
    with clock.busy():
        now[0] = 11.0
    assert clock.seconds == 5.0


def test_an_activity_that_fails_ends_all_the_same():
    now = [0.0]
    clock = BusyClock(lambda: now[0])
    with pytest.raises(ValueError), clock.busy():
        now[0] = 2.0
        raise ValueError
    now[0] = 9.0
    assert clock.seconds == 2.0


def test_lag_is_weighted_by_tokens():
    metrics = Metrics()
    metrics.lags.update({0: 90, 1: 8, 4: 2})
    assert metrics.lag_summary() == {"mean": pytest.approx(0.16), "p95": 1.0, "max": 4}


def test_a_run_without_tokens_has_no_lag():
    assert Metrics().lag_summary()["max"] == 0


async def test_a_blocked_loop_shows_in_the_lag():
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(0.05)
    time.sleep(0.2)
    await asyncio.sleep(0.05)
    lag.stop()
    assert lag.quantile(1.0) > 0.1
    assert lag.quantile(0.5) < 0.1


def test_weight_updates_count_what_moved_beside_what_all_tensors_are():
    metrics = Metrics()
    for step, moved in enumerate([100, 3, 2]):
        metrics.updated(
            PublishReport(
                version=Version(0, step),
                send_seconds=0.5,
                prepare_seconds=0.25,
                pause_seconds=0.125,
                bytes=moved,
                dense_bytes=100,
            )
        )
    assert dict(metrics.updates) == {
        "count": 3,
        "bytes": 105,
        "dense_bytes": 300,
        "send_seconds": 1.5,
        "prepare_seconds": 0.75,
        "pause_seconds": 0.375,
    }
