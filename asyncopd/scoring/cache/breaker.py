"""A store whose failures cost a cache miss, never a run.

Invariants: no call raises `StoreUnavailable`; an outage is logged once when it begins and once when it
ends; during an outage the store is tried again only after a growing pause, by the next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from asyncopd.scoring.cache.errors import StoreUnavailable
from asyncopd.seams import ScoreStore

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 60.0


class Breaker:
    """Wraps `store`; `errors` counts its failures. `pause_s` is the first pause, doubled at each failure."""

    def __init__(self, store: ScoreStore, pause_s: float = 1.0) -> None:
        self.errors = 0
        self._store = store
        self._first_pause = pause_s
        self._pause = pause_s
        self._retry_at: float | None = None

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not self._resting():
            try:
                values = await self._store.get(keys)
            except StoreUnavailable as error:
                self._failed(error)
            else:
                self._worked()
                return values
        return [None] * len(keys)

    async def put(self, items: Mapping[bytes, bytes]) -> bool:
        """Return whether the items were stored."""
        if self._resting():
            return False
        try:
            await self._store.put(items)
        except StoreUnavailable as error:
            self._failed(error)
            return False
        self._worked()
        return True

    def _resting(self) -> bool:
        return self._retry_at is not None and asyncio.get_running_loop().time() < self._retry_at

    def _failed(self, error: StoreUnavailable) -> None:
        self.errors += 1
        if self._resting():
            return  # it was under way when another call found the outage
        if self._retry_at is None:
            _log.warning("%s; segments are scored without it until it answers again", error)
        self._retry_at = asyncio.get_running_loop().time() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)

    def _worked(self) -> None:
        if self._retry_at is not None:
            _log.warning("the score cache answers again")
        self._retry_at = None
        self._pause = self._first_pause
