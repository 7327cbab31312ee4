"""Counters, busy times and the lag of the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from asyncopd.records import Differences, PublishReport
from asyncopd.telemetry.engine_counts import EngineCounts


class BusyClock:
    """Seconds during which at least one activity of a stage was under way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._active = 0
        self._since = 0.0
        self._seconds = 0.0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time inside; activities may overlap."""
        if self._active == 0:
            self._since = self._clock()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if self._active == 0:
                self._seconds += self._clock() - self._since

    def add(self, seconds: float) -> None:
        """Count seconds that were busy before this clock began."""
        self._seconds += seconds

    @property
    def seconds(self) -> float:
        """Busy seconds so far."""
        return self._seconds + (self._clock() - self._since if self._active else 0.0)


class LoopLag:
    """How late the event loop runs what is due: a timer every 20 ms, and how much later it fired.

    Kept as counts by tenths of a millisecond, which do not grow with the length of a run.
    """

    _INTERVAL_S = 0.02
    _RESOLUTION_S = 1e-4

    def __init__(self) -> None:
        self._lags: Counter[int] = Counter()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def quantile(self, share: float) -> float:
        """Seconds that a `share` of the timers were late at most; 0 before the first fired."""
        return _quantile(self._lags, share) * self._RESOLUTION_S if self._lags else 0.0

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._INTERVAL_S
        self._handle = loop.call_at(due, self._fired, loop, due)

    def _fired(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._lags[math.ceil((loop.time() - due) / self._RESOLUTION_S)] += 1
        self._arm(loop)


class Metrics:
    """What a run counts: tokens and busy time by stage, trained tokens by lag, weight updates and their cost.

    `agreement` and `mixed` compare engine and learner, as in `StepReport`.
    """

    STAGES = ("rollout", "scoring", "learner")

    def __init__(self) -> None:
        self.busy = {stage: BusyClock() for stage in self.STAGES}
        self.tokens: Counter[str] = Counter()
        self.updates: Counter[str] = Counter()
        self.engines: dict[str, EngineCounts] = {}
        self.lags: Counter[int] = Counter()
        self.agreement = Differences()
        self.mixed = Differences()
        self.loop_lag = LoopLag()

    def trained(self, lags: Mapping[int, int], agreement: Differences, mixed: Differences) -> None:
        """Count what a step says of its tokens."""
        self.lags.update(lags)
        self.agreement += agreement
        self.mixed += mixed

    def updated(self, report: PublishReport) -> None:
        """Count a weight update that every engine committed."""
        moved = {"bytes": report.bytes, "dense_bytes": report.dense_bytes}
        seconds = {
            "send_seconds": report.send_seconds,
            "prepare_seconds": report.prepare_seconds,
            "pause_seconds": report.pause_seconds,
        }
        self.updates.update({"count": 1, **moved, **seconds})  # type: ignore[dict-item]  # floats add too

    def lag_summary(self) -> dict[str, float]:
        """Return `mean`, `p95` and `max` lag of the trained tokens, in optimizer steps."""
        if not self.lags:
            return {"mean": 0.0, "p95": 0.0, "max": 0}
        return {
            "mean": sum(lag * tokens for lag, tokens in self.lags.items()) / self.lags.total(),
            "p95": float(_quantile(self.lags, 0.95)),
            "max": max(self.lags),
        }


def _quantile(counts: Counter[int], share: float) -> int:
    """Return the least value that a `share` of what was counted does not exceed."""
    left = share * counts.total()
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    raise ValueError("nothing was counted")
