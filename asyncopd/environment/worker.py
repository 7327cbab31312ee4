"""A thread that runs an episode's blocking code, so that nobody else waits for it.

Invariants:
- the calls of one episode run one after another in one thread, so a connection made in one serves the next, and
  tools called at the same time do not race;
- a call that is given up is left to its thread, which serves nothing more; the next call has a new one;
- threads are daemons: none keeps the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Worker:
    """Runs functions in a thread of its own, made when first needed."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] | None = None

    async def call(self, function: Callable[..., Answer], /, *arguments: Any, **named: Any) -> Answer:
        """Return what `function` returns, or raise what it raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            try:
                result = context.run(function, *arguments, **named)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller, whatever it is
                settle = functools.partial(answer.set_exception, _raisable(error))
            else:
                settle = functools.partial(answer.set_result, result)
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None if answer.done() else settle())

        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name="environment", daemon=True).start()
        self._jobs.put(job)
        try:
            return await answer
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _serve(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()


def _raisable(error: BaseException) -> BaseException:
    """Return the error as one that a future may hold."""
    return RuntimeError("StopIteration was raised") if isinstance(error, StopIteration) else error
