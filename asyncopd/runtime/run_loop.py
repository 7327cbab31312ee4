"""The run loop: events in, durable first; commands out to the stages.

Invariants
- An event is on disk before it is applied, and applied in journal order.
- Only this loop touches the scheduler.
- Every command of an event is handed to its channel before the next event is applied.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from asyncopd.runtime.channels import AsyncioChannel
from asyncopd.runtime.journal import Journal
from asyncopd.scheduler import commands
from asyncopd.scheduler.events import AnyEvent
from asyncopd.scheduler.scheduler import Scheduler


class RunFailed(RuntimeError):
    """The scheduler found that the run cannot go on; the message says why."""


class RunLoop:
    """Turns what happens into what is done, until the scheduler says that nothing is left."""

    def __init__(
        self,
        scheduler: Scheduler,
        journal: Journal,
        *,
        rollouts: AsyncioChannel,
        scoring: AsyncioChannel,
        learning: AsyncioChannel,
        release: Callable[[str], None],
    ) -> None:
        self.scheduler = scheduler
        self.last_event = time.monotonic()
        self.last_failure = ""
        self._journal = journal
        self._inbox: asyncio.Queue[AnyEvent] = asyncio.Queue()
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rollouts = rollouts
        self._scoring = scoring
        self._learning = learning
        self._release = release
        self._end: commands.FinishRun | commands.FailRun | None = None

    def emit(self, kind: type[AnyEvent], **fields: Any) -> None:
        """Say that something happened, now."""
        self._inbox.put_nowait(kind(time=time.time(), **fields))

    def fail(self, error: BaseException) -> None:
        """Make `run` raise `error`; the first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> str:
        """Serve events until the end. Returns the scheduler's reason; raises `RunFailed` or what `fail` was told."""
        serving = asyncio.create_task(self._serve())
        try:
            ends: list[asyncio.Future[str]] = [serving, self._failure]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    async def _serve(self) -> str:
        while self._end is None:
            events = [await self._inbox.get()]
            while not self._inbox.empty():
                events.append(self._inbox.get_nowait())
            await self._journal.append(events)
            self.last_event = time.monotonic()
            for event in events:
                for command in self.scheduler.apply(event):
                    await self._dispatch(command)
                    await asyncio.sleep(0)  # a burst of starts must not hold up everything else
        if isinstance(self._end, commands.FailRun):
            because = f"; the last of them failed with {self.last_failure}" if self.last_failure else ""
            raise RunFailed(f"{self._end.reason}{because}")
        await self._learning.emptied()  # the last weights are on their way to the engines
        return self._end.reason

    async def _dispatch(self, command: commands.Command) -> None:
        match command:
            case commands.StartAttempt():
                await self._rollouts.put(command, priority=command.step)
            case commands.ScoreAttempt():
                await self._scoring.put(command, priority=command.step)
            case commands.TrainStep() | commands.PublishWeights() | commands.SaveCheckpoint():
                await self._learning.put(command)
            case commands.ReleasePayloads():
                for key in command.keys:
                    self._release(key)
            case commands.FinishRun() | commands.FailRun():
                self._end = command
