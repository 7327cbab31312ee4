"""An arrow of the flow, in one process.

Invariants
- What is put is leased exactly once, in order of priority, then of arrival.
- `put` waits while `capacity` items are unacknowledged; nobody polls.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from asyncopd.seams import DeadlineExceeded


class AsyncioChannel:
    """A bounded queue with leases. Lower `priority` is leased first."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self._capacity = capacity
        self._room = asyncio.Semaphore(capacity)
        self._items: asyncio.PriorityQueue[tuple[int, int, Any]] = asyncio.PriorityQueue()
        self._order = itertools.count()

    async def put(self, item: Any, priority: int = 0, timeout_s: float | None = None) -> None:
        """Add `item`, waiting for room. Raises `DeadlineExceeded` after `timeout_s` seconds."""
        try:
            await asyncio.wait_for(self._room.acquire(), timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"channel {self.name!r} held {self._capacity} items for {timeout_s} s and its consumers took none"
            ) from None
        self._items.put_nowait((priority, next(self._order), item))

    async def lease(self) -> Any:
        """Return the next item, waiting for one; it takes up room until `ack`."""
        _, _, item = await self._items.get()
        return item

    def ack(self, item: Any) -> None:
        """Say that a leased item is done with."""
        self._items.task_done()
        self._room.release()

    async def emptied(self) -> None:
        """Wait until all that was put is acknowledged."""
        await self._items.join()
