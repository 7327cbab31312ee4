"""Environment instances, made when needed and used by one episode at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncopd.seams import Environment

CLOSE_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class Environments:
    """Lends instances.

    Invariants
    - An instance serves one episode at a time.
    - An instance whose episode ended in any error, or was cancelled, serves no other.
    - Every instance made is closed once.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._idle: list[Environment] = []

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Environment]:
        """Have an instance for the time of one episode. Raises what making one raises."""
        environment = self._idle.pop() if self._idle else self._make()
        try:
            yield environment
        except BaseException:
            await _close(environment)
            raise
        self._idle.append(environment)

    async def close(self) -> None:
        """Close the idle instances; call it when no episode is alive."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(_close(environment) for environment in idle))


async def _close(environment: Environment) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await environment.close()
    except Exception:  # noqa: BLE001 - a failing close must not hide why the episode ended
        _log.exception("closing an environment failed: %s", type(environment).__name__)
