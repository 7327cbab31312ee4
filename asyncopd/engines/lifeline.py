"""Waits on an engine, ended by whichever comes first: the answer, a deadline, or the engine's death.

Invariants:
- once severed, every wait, running or new, raises `EngineDied`;
- work that is given up is cancelled, never left running.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asyncopd.seams import DeadlineExceeded, EngineDied

Answer = TypeVar("Answer")


class Lifeline:
    """The life of engine `name`; belongs to the event loop it was made on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._severed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def severed(self) -> bool:
        return self._severed.done()

    def sever(self, reason: str) -> None:
        """End all waits; the first reason stands."""
        if not self._severed.done():
            self._severed.set_result(reason)

    async def hold(
        self, work: Coroutine[Any, Any, Answer], deadline: float = math.inf, waiting: Callable[[], str] = str
    ) -> Answer:
        """Return the result of `work`. `waiting` says, after the deadline, who waited on what."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        timeout = None if deadline == math.inf else max(0.0, deadline - loop.time())
        try:
            ends: set[asyncio.Future[Any]] = {task, self._severed}
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if self._severed.done():
                raise EngineDied(f"engine {self._name} {self._severed.result()}")
            if not task.done():
                raise DeadlineExceeded(waiting())
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # retrieved, so that a death is reported once, by this wait
