"""The door of an engine: requests enter at a known version, and nobody enters while weights change.

Invariants:
- between `shut` and `open` no request enters, while several may be inside at once before;
- a request that entered was submitted whole before any later `shut` returned, and saw exactly one version;
- after an update that was begun and not committed (`whole` is false), none enters until one is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncopd.records import GenerateRequest, Version


class Gate:
    """Guards an engine that serves `version`; `whole` says whether its weights are all of that version."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.whole = True
        self._changed = asyncio.Event()
        self._inside = 0
        self._shut = False

    @asynccontextmanager
    async def enter(self, min_version: Version) -> AsyncIterator[Version]:
        """Wait until the engine serves at least `min_version`, then hold it there while the caller submits."""
        await self._until(lambda: not self._shut and self.whole and self.version >= min_version)
        self._inside += 1
        try:
            yield self.version
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._tell()

    def wait_of(self, request: GenerateRequest, engine: str) -> str:
        """Say, for an error, what `request` waited on."""
        who = f"request {request.request_id} of trajectory {request.trajectory_id} waited on engine {engine}"
        if not self.whole:
            return f"{who}, whose last weight update failed and was not repeated"
        if self.version < request.min_version:
            return f"{who} for version {request.min_version}; it serves {self.version}"
        return f"{who} past its deadline"

    async def shut(self) -> None:
        """Keep requests out until `open`; those that entered are already submitted."""
        self._shut = True
        await self._until(lambda: self._inside == 0)

    def commit(self, version: Version) -> None:
        """Say that the weights are wholly of `version`."""
        assert self._shut, "weights change only behind a shut gate"
        self.version = version
        self.whole = True

    def open(self) -> None:
        """Let requests in again; does nothing to an open gate."""
        self._shut = False
        self._tell()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _tell(self) -> None:
        """Have every waiter look again."""
        self._changed.set()
        self._changed = asyncio.Event()
