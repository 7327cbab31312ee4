"""An engine as its fleet sees it: what it is doing, and whether it still serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from asyncopd.engines.lifeline import Lifeline
from asyncopd.records import GenerateRequest, Generation, Manifest, Version
from asyncopd.seams import Engine, WeightReceiver

_log = logging.getLogger(__name__)

_CLOSE_S = 30.0
_LAST_WORDS_S = 1.0  # a closed engine tells its requests what it had sampled; one that hangs does not


class Loss(NamedTuple):
    """Why an engine takes no new requests, and the seconds that those under way may still have."""

    reason: str
    grace_s: float = 0.0


class Member:
    """`engine`, with the `requests` under way on it. `lost` is answered once it takes no new ones."""

    def __init__(self, engine: Engine, committed: Callable[[str, Version], None]) -> None:
        self.engine = engine
        self.name = engine.name
        self.receiver = WatchedReceiver(engine.receiver, committed)
        self.requests = 0
        self.lost: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self._lifeline = Lifeline(engine.name)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def version(self) -> Version:
        return self.engine.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a turn. Raises what the engine raises, and `EngineDied` once it was closed."""
        self.requests += 1
        self._idle.clear()
        try:
            return await self._lifeline.hold(self.engine.generate(request))
        finally:
            self.requests -= 1
            if not self.requests:
                self._idle.set()

    async def end(self, grace_s: float) -> None:
        """Give the requests under way `grace_s` seconds to finish, then close the engine; the others raise."""
        await self._idle_within(grace_s)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.engine.close()
        except Exception:  # noqa: BLE001 - a supervised boundary: what hangs or is dead fails in its own ways
            _log.exception("engine %s did not close", self.name)
        await self._idle_within(_LAST_WORDS_S)
        self._lifeline.sever("was closed")

    async def _idle_within(self, seconds: float) -> None:
        idle = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait({idle}, timeout=seconds)
        idle.cancel()


class WatchedReceiver:
    """Passes an update on to an engine, and notes when it loads and what it commits.

    `loading` is true while it is behind the freeze; `updates` counts the times it was frozen.
    """

    def __init__(self, receiver: WeightReceiver, committed: Callable[[str, Version], None]) -> None:
        self.name = receiver.name
        self.loading = False
        self.updates = 0
        self._receiver = receiver
        self._committed = committed

    async def prepare(self, manifest: Manifest) -> None:
        await self._receiver.prepare(manifest)

    async def freeze(self) -> None:
        self.loading = True
        self.updates += 1
        await self._receiver.freeze()

    async def receive(self, manifest: Manifest) -> None:
        await self._receiver.receive(manifest)

    async def commit(self, version: Version) -> None:
        await self._receiver.commit(version)
        self._committed(self.name, version)

    async def thaw(self) -> None:
        try:
            await self._receiver.thaw()
        finally:
            self.loading = False
