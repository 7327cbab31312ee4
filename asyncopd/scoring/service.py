"""Finished segments in, teacher scores out: from the cache where they lie there, else from the teacher.

Invariants
- A segment being scored is asked for once, however many wait for it.
- One teacher call at a time, of the most urgent segments that wait; cached segments wait for none.
- Nothing reaches a caller or the store that is not a valid answer, and hit and miss give equal bits:
  both are what the codec decodes.
- A failing store costs misses; a failing teacher costs retries, then `None`; any other error of the
  teacher reaches every caller it concerns. Nobody is left waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence

import numpy as np

from asyncopd.config.scoring import ScoringSection
from asyncopd.errors import UserError
from asyncopd.records import ScoreRequest, Scores, Support, Trajectory
from asyncopd.scoring.cache.breaker import Breaker
from asyncopd.scoring.cache.codec import decode_scores, encode_scores
from asyncopd.scoring.cache.errors import CorruptScores
from asyncopd.scoring.cache.keys import score_key
from asyncopd.scoring.flights import Flight, WaitingLine
from asyncopd.scoring.stats import ScoringStats
from asyncopd.scoring.validation import InvalidScores, validated
from asyncopd.seams import ScoreStore, Teacher

_log = logging.getLogger(__name__)

# Seconds that the last answers may take to be stored when the service closes.
_CLOSE_S = 10.0


class ScoringService:
    """Scores trajectories at one support. Needs a running event loop; `close` it in that loop."""

    def __init__(self, teacher: Teacher, store: ScoreStore | None, section: ScoringSection, support: Support) -> None:
        """Raises `UserError` if `teacher` cannot answer at `support`."""
        _require(teacher, support)
        self._teacher = teacher
        self._store = None if store is None else Breaker(store)
        self._section = section
        self._support = support
        self._stats = ScoringStats()
        self._flights: dict[bytes, Flight] = {}
        self._order = 0
        self._arrived: asyncio.Queue[Flight] = asyncio.Queue()
        self._line = WaitingLine()
        self._tasks: set[asyncio.Task[None]] = set()
        self._storing: set[asyncio.Task[None]] = set()
        self._spawn(self._look_up_forever(), self._tasks)
        self._spawn(self._teach_forever(), self._tasks)

    @property
    def stats(self) -> ScoringStats:
        """The counters as they stand."""
        if self._store is not None:
            self._stats.store_errors = self._store.errors
        return self._stats

    async def score(self, trajectory: Trajectory, priority: int) -> list[Scores | None]:
        """Return the scores of each segment's trained rows, `None` where the teacher failed to give any.

        Lower `priority` goes first. Raises what the teacher raises that no retry can heal.
        """
        requests = self._teacher.view(trajectory, self._support)
        return list(await asyncio.gather(*(self._ask(request, priority) for request in requests)))

    async def close(self) -> None:
        """Stop; whoever still waits is cancelled. Answers already given are stored first."""
        for task in self._tasks:
            task.cancel()
        for flight in self._flights.values():
            flight.done.cancel()
        if self._storing:
            await asyncio.wait(self._storing, timeout=_CLOSE_S)
        for task in self._storing:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._storing, return_exceptions=True)

    async def _ask(self, request: ScoreRequest, priority: int) -> Scores | None:
        if not len(request.scored_ids_R):
            return _nothing(request.support)
        key = score_key(self._section.namespace, self._teacher.identity, request)
        flight = self._flights.get(key)
        if flight is None:
            self._order += 1
            done: asyncio.Future[Scores | None] = asyncio.get_running_loop().create_future()
            flight = self._flights[key] = Flight(request, key, priority, self._order, done)
            self._arrived.put_nowait(flight)
        else:
            self._stats.shared += 1
            self._line.hasten(flight, priority)
        # Shielded: one caller's cancellation is not the others'.
        return await asyncio.shield(flight.done)

    async def _look_up_forever(self) -> None:
        while True:
            flights = [await self._arrived.get()]
            while not self._arrived.empty():
                flights.append(self._arrived.get_nowait())
            await self._supervised(self._look_up(flights), flights)

    async def _teach_forever(self) -> None:
        while True:
            flights = await self._line.take(self._section.max_batch)
            await self._supervised(self._teach(flights), flights)

    async def _supervised(self, work: Coroutine[None, None, None], flights: Sequence[Flight]) -> None:
        """Stores and teachers are anyone's code: whatever they raise goes to those who wait for it."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised again, in each of those who wait
            for flight in flights:
                if not flight.done.done():
                    flight.done.set_exception(error)
                self._flights.pop(flight.key, None)

    async def _look_up(self, flights: Sequence[Flight]) -> None:
        values = [None] * len(flights) if self._store is None else await self._store.get([f.key for f in flights])
        for flight, value in zip(flights, values, strict=True):
            scores = None if value is None else self._read(flight.request, value)
            if scores is None:
                self._stats.misses += 1
                self._line.put(flight)
            else:
                self._stats.hits += 1
                self._settle(flight, scores)
                del self._flights[flight.key]

    def _read(self, request: ScoreRequest, value: bytes) -> Scores | None:
        """Return the stored answer to `request`, `None` if it is damaged or narrower."""
        self._stats.bytes += len(value)
        try:
            scores = decode_scores(value, request)
            if not scores.support.contains(request.support):
                return None
            return validated(scores.narrowed(request.support), request)
        except (CorruptScores, InvalidScores) as error:
            self._stats.corrupt += 1
            _log.warning("the score cache gave back a damaged value (%s); the segment is scored again", error)
            return None

    async def _teach(self, flights: Sequence[Flight]) -> None:
        try:
            answers = await self._call([flight.request for flight in flights])
        except (OSError, InvalidScores) as error:
            for flight in flights:
                self._retry(flight, error)
            return
        values: dict[bytes, bytes] = {}
        for flight, answer in zip(flights, answers, strict=True):
            try:
                value = encode_scores(validated(answer, flight.request), self._section.cache_bits)
            except InvalidScores as error:
                self._retry(flight, error)
            else:
                self._settle(flight, decode_scores(value, flight.request))
                values[flight.key] = value
        self._spawn(self._keep(values), self._storing)

    async def _call(self, requests: list[ScoreRequest]) -> list[Scores]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self._section.timeout_s):
                answers = await self._teacher.score(requests)
        finally:
            self._stats.teacher_seconds += loop.time() - started
            self._stats.teacher_tokens += sum(len(request.context_ids_C) for request in requests)
        if len(answers) != len(requests):
            raise InvalidScores(f"{len(answers)} answers to {len(requests)} requests")
        return answers

    def _retry(self, flight: Flight, error: Exception) -> None:
        flight.tries += 1
        if flight.tries <= self._section.max_retries:
            self._stats.retries += 1
            _log.info("the teacher failed a segment (%s); it is asked again", _words(error))
            self._line.put(flight)
            return
        self._stats.unscored += 1
        _log.warning("a segment stays unscored after %d tries: %s", flight.tries, _words(error))
        self._settle(flight, None)
        del self._flights[flight.key]

    def _settle(self, flight: Flight, scores: Scores | None) -> None:
        # Done already only if the service is closing.
        if not flight.done.done():
            flight.done.set_result(scores)

    async def _keep(self, values: dict[bytes, bytes]) -> None:
        """Store answers; until they lie there, those who ask again share the flight."""
        try:
            if self._store is not None and values and await self._store.put(values):
                self._stats.bytes += sum(map(len, values.values()))
        finally:
            for key in values:
                del self._flights[key]

    def _spawn(self, work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _require(teacher: Teacher, support: Support) -> None:
    if any(offered.contains(support) for offered in teacher.supports):
        return
    offers = ", ".join(f"{offered.kind} up to {offered.width}" for offered in teacher.supports)
    raise UserError(
        f"objective.width {support.width}",
        f"the teacher cannot answer {support.kind} of {support.width} entries a position",
        f"it offers {offers}",
    )


def _nothing(support: Support) -> Scores:
    return Scores(
        support=support,
        ids_RK=np.zeros((0, support.width), np.int32),
        logp_RK=np.zeros((0, support.width), np.float32),
    )


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
