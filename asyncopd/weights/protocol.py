"""One weight update, whatever carries it: prepare, freeze, receive, commit and thaw, all engines together.

Invariants:
- no engine enters a phase before all have left the one before; one that failed a phase enters no later one but
  the thaw, and holds up nobody;
- every engine that was asked to freeze is thawed, whatever failed; one that began to load and did not commit stays
  unusable, by its receiver, until an update succeeds;
- every phase has a deadline of its own, so that one engine that hangs leaves the others their time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from asyncopd.records import Manifest, Version
from asyncopd.seams import WeightReceiver


class PublishFailed(RuntimeError):
    """A publish reached no engine; the message names who failed, the phase and the cause."""


class NoEngineCame(PublishFailed):
    """The learner sent its weights, and no engine came to them, or there was none: one that starts can catch up.

    `failed` names the engines that were asked, each with its reason.
    """

    def __init__(self, failed: Mapping[str, str]) -> None:
        super().__init__(next(iter(failed.values()), "no engine is left to publish to"))
        self.failed = dict(failed)


class Update:
    """Brings `receivers` to the version of `manifest`; `failed` says who did not come along, and why."""

    def __init__(self, manifest: Manifest, receivers: Sequence[WeightReceiver], timeout_s: float) -> None:
        self.failed: dict[str, str] = {}
        self.prepare_seconds = 0.0
        self.pause_seconds = 0.0
        self._manifest = manifest
        self._receivers = tuple(receivers)
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Go through all phases. Raises `NoEngineCame`."""
        await self.prepare()
        await self.install()

    async def prepare(self) -> None:
        """Have all engines fetch and verify; where the bytes move meanwhile, the sender runs beside this."""
        clock = asyncio.get_running_loop().time
        started = clock()
        await self._all("prepare", lambda receiver: receiver.prepare(self._manifest))
        self.prepare_seconds = clock() - started

    async def install(self) -> None:
        """Go through the phases that engines feel, with those that prepared. Raises `NoEngineCame`."""
        clock = asyncio.get_running_loop().time
        prepared = clock()
        frozen = self._able()
        try:
            await self._all("freeze", lambda receiver: receiver.freeze())
            await self._all("receive", lambda receiver: receiver.receive(self._manifest))
            await self._all("commit", lambda receiver: receiver.commit(self._manifest.version))
        finally:
            await self._phase("thaw", frozen, lambda receiver: receiver.thaw())
        self.pause_seconds = clock() - prepared
        if not self._able():
            raise NoEngineCame(self.failed)

    def _able(self) -> list[WeightReceiver]:
        return [receiver for receiver in self._receivers if receiver.name not in self.failed]

    async def _all(self, phase: str, action: Callable[[WeightReceiver], Awaitable[None]]) -> None:
        await self._phase(phase, self._able(), action)

    async def _phase(
        self, phase: str, receivers: Sequence[WeightReceiver], action: Callable[[WeightReceiver], Awaitable[None]]
    ) -> None:
        async def one(receiver: WeightReceiver) -> None:
            try:
                async with within(self._timeout_s, f"engine {receiver.name}", phase, self._manifest.version):
                    await action(receiver)
            except PublishFailed as error:
                self.failed.setdefault(receiver.name, str(error))  # the first cause is the one to report

        await asyncio.gather(*map(one, receivers))


@contextlib.asynccontextmanager
async def within(timeout_s: float, who: str, phase: str, version: Version) -> AsyncIterator[None]:
    """Give the block `timeout_s` seconds; what goes wrong in it becomes `PublishFailed`."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise PublishFailed(f"{who}: {phase} of version {version} did not end within {timeout_s:g} s") from error
    except Exception as error:  # a supervised boundary: learners and engines fail in their own ways
        raise PublishFailed(f"{who}: {phase} of version {version} failed: {error}") from error
