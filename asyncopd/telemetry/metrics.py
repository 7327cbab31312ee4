"""Counters, busy times and the lag of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np


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

    @property
    def seconds(self) -> float:
        """Busy seconds so far."""
        return self._seconds + (self._clock() - self._since if self._active else 0.0)


class LoopLag:
    """How late the event loop runs what is due: a timer every 20 ms, and how much later it fired."""

    _INTERVAL_S = 0.02

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def quantile(self, share: float) -> float:
        """Seconds that a `share` of the timers were late at most; 0 before the first fired."""
        return float(np.quantile(self._lags, share)) if self._lags else 0.0

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._INTERVAL_S
        self._handle = loop.call_at(due, self._fired, loop, due)

    def _fired(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._lags.append(loop.time() - due)
        self._arm(loop)


class Metrics:
    """What a run counts: tokens and busy time by stage, trained tokens by lag."""

    STAGES = ("rollout", "scoring", "learner")

    def __init__(self) -> None:
        self.busy = {stage: BusyClock() for stage in self.STAGES}
        self.tokens: Counter[str] = Counter()
        self.lags: Counter[int] = Counter()
        self.loop_lag = LoopLag()

    def lag_summary(self) -> dict[str, float]:
        """Return `mean`, `p95` and `max` lag of the trained tokens, in optimizer steps."""
        if not self.lags:
            return {"mean": 0.0, "p95": 0.0, "max": 0}
        lags = np.array(sorted(self.lags))
        counts = np.array([self.lags[lag] for lag in lags])
        cumulative = np.cumsum(counts) / counts.sum()
        return {
            "mean": float((lags * counts).sum() / counts.sum()),
            "p95": float(lags[np.searchsorted(cumulative, 0.95)]),
            "max": int(lags[-1]),
        }
