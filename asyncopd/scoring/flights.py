"""Segments on their way to the teacher, most urgent first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from asyncopd.records import ScoreRequest, Scores


@dataclass(eq=False)
class Flight:
    """One segment being scored, shared by all who asked for it; `order` settles ties of priority."""

    request: ScoreRequest
    key: bytes
    priority: int
    order: int
    done: asyncio.Future[Scores | None]
    tries: int = 0
    waiting: bool = False


class WaitingLine:
    """Flights that wait for the teacher. One made more urgent is queued twice; the later entry is void."""

    def __init__(self) -> None:
        self._queue: asyncio.PriorityQueue[tuple[int, int, Flight]] = asyncio.PriorityQueue()

    def put(self, flight: Flight) -> None:
        flight.waiting = True
        self._queue.put_nowait((flight.priority, flight.order, flight))

    def hasten(self, flight: Flight, priority: int) -> None:
        """Give `flight` the lower of its priority and this one, wherever it is."""
        if priority < flight.priority:
            flight.priority = priority
            if flight.waiting:
                self.put(flight)

    async def take(self, limit: int) -> list[Flight]:
        """Wait for a flight and return up to `limit`. One that failed before goes alone, lest it fail others."""
        batch: list[Flight] = []
        while not batch:
            self._admit(batch, await self._queue.get())
        while len(batch) < limit and not batch[0].tries and not self._queue.empty():
            entry = self._queue.get_nowait()
            if entry[2].tries:
                self._queue.put_nowait(entry)
                break
            self._admit(batch, entry)
        return batch

    @staticmethod
    def _admit(batch: list[Flight], entry: tuple[int, int, Flight]) -> None:
        flight = entry[2]
        if flight.waiting:
            flight.waiting = False
            batch.append(flight)
