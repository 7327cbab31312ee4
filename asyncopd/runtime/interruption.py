"""Being asked to stop, by Ctrl-C, by SIGTERM, or by another thread.

Invariants
- Asked once in a patient block, the work goes on to a good end of its own; asked anywhere else, or twice,
  it is cancelled at once, and only once: what it cleans up then is not disturbed.
- Whoever asks is heard, also before the work has begun.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(RuntimeError):
    """The run was asked to stop, and nothing that was acknowledged is lost; the message says how to resume."""


class Interruption:
    """Stops one piece of work."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._work: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._patient = False
        self._early = False
        self._cancelled = False

    def ask(self) -> None:
        """Ask the work to stop; from any thread."""
        self._early = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._heard)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work`, listening to signals where this is the main thread. Raises `CancelledError` if it was stopped."""
        self._loop = asyncio.get_running_loop()
        self._work = self._loop.create_task(work)
        if self._early:
            self._heard()
        with self._signals(self._loop):
            try:
                return await self._work
            except asyncio.CancelledError:
                self._work.cancel()  # if it was not the work that was cancelled, but who waits for it
                await asyncio.wait([self._work])
                raise
            finally:
                self._loop = None

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Inside, the first request only sets `asked`."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def _heard(self) -> None:
        impatient = self.asked.is_set() or not self._patient
        if impatient and not self._cancelled and self._work is not None:
            self._cancelled = self._work.cancel()
        self.asked.set()

    @contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._heard)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
