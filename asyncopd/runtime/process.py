"""A process of its own for one role: functions run there one after another.

Invariants
- Calls run in the order they were submitted.
- A call that outlives its deadline kills the process; the caller gets `WorkerLost`, never a hang.
- The process ignores SIGINT, and ends when its parent does, however that dies.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

Result = TypeVar("Result")

_START_TIMEOUT_S = 180.0


class WorkerLost(RuntimeError):
    """The process of a role died or was killed at its deadline; the message says which and in which call."""


class WorkerProcess:
    """A single spawned worker. State lives in module globals of the worker, set by its first call."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._spawning = _Spawning()
        self._pool = ProcessPoolExecutor(1, mp_context=self._spawning)
        self._last: Future[Any] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._spawning.process is not None and self._spawning.process.pid is not None, "not started"
        return self._spawning.process.pid

    @classmethod
    async def start(cls, role: str, threads: int) -> WorkerProcess:
        """Spawn the process with `threads` compute threads. Raises `WorkerLost`."""
        worker = cls(role)
        try:
            await worker.call(_prepare, threads, timeout_s=_START_TIMEOUT_S)
        except BaseException:
            worker.kill()
            worker._pool.shutdown(wait=False, cancel_futures=True)
            raise
        return worker

    async def call(self, function: Callable[..., Result], *arguments: Any, timeout_s: float) -> Result:
        """Run `function(*arguments)` in the process. Raises what it raises, or `WorkerLost`."""
        try:
            future = self._last = self._pool.submit(function, *arguments)
            waited = asyncio.wrap_future(future)
            waited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # given up, it is nobody's
            done, _ = await asyncio.wait([waited], timeout=timeout_s)
            if done:
                return done.pop().result()
        except BrokenProcessPool:
            raise WorkerLost(f"the {self.role} process died in {function.__name__}") from None
        self.kill()
        raise WorkerLost(f"the {self.role} process took over {timeout_s} s in {function.__name__}")

    def kill(self) -> None:
        """End the process at once."""
        if self._spawning.process is not None:
            self._spawning.process.kill()

    async def close(self) -> None:
        """End the process; a call under way is given up."""
        if self._last is not None and not self._last.done():
            self.kill()
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)


class _Spawning(SpawnContext):
    """A context that knows the process it spawned: a pool does not tell which that is."""

    process: SpawnProcess | None = None

    def Process(self, *arguments: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]  # a class there
        self.process = SpawnProcess(*arguments, **options)
        return self.process


def _prepare(threads: int) -> None:
    # A terminal's Ctrl-C reaches the whole process group; the main process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)  # the event loop, which feeds everyone, goes before those who compute
    threading.Thread(target=_follow_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
