"""One broadcast of one version to one group: the learner sends while the engines receive.

Invariants:
- engines are asked in only once the learner has announced what it sends;
- with gloo, no engine is frozen before the bytes have arrived; with nccl they move behind the freeze;
- a fault at either end ends the waits of the other, and it is known who began it.
"""

from __future__ import annotations

import asyncio
import time

from asyncopd.records import Manifest, PublishReport, SendOrder, Version, WeightFile
from asyncopd.seams import WeightSource
from asyncopd.weights.group import Group
from asyncopd.weights.protocol import PublishFailed, Update

_POLL_S = 0.01
_AFTERMATH_S = 1.0
_SHARE = 0.8  # of a phase's time, after which members give up, so that they can still say why


class Delivery:
    """Update number `number` of `group`, to `version`; `run` it once.

    `failed` says which engines did not come along, and why. After an update that was not `clean` the group is of no
    more use.
    """

    def __init__(self, group: Group, number: int, version: Version, timeout_s: float) -> None:
        self.failed: dict[str, str] = {}
        self.clean = False
        self._group = group
        self._version = version
        self._timeout_s = timeout_s
        self._rendezvous = group.rendezvous(number, timeout_s * _SHARE)
        self._seats = group.seats(self._rendezvous)

    async def run(self, source: WeightSource, learner_timeout_s: float) -> PublishReport | None:
        """Return what it cost, or None where engines that only suffered should be tried again without the failed.

        Raises `PublishFailed` where trying again is no use.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        sending = asyncio.create_task(self._send(source), name="broadcast")
        try:
            weights = await self._announced(sending, learner_timeout_s)
            announced = clock()
            update = Update(Manifest(files=(weights,)), self._seats, self._timeout_s)
            await update.prepare()
            if self._group.transport == "gloo" or update.failed:
                learner_suffered = await self._suffered(sending)
                suffered = await self._only_suffered(update)
                if self._should_repeat(update, suffered, learner_suffered):
                    return None
            await update.install()
            self.failed = update.failed
            self.clean = not await self._suffered(sending) and not update.failed
        finally:
            sending.cancel()
            await asyncio.wait({sending})
        return PublishReport(
            version=self._version,
            send_seconds=announced - started,
            prepare_seconds=update.prepare_seconds,
            pause_seconds=update.pause_seconds,
            bytes=weights.nbytes,
            dense_bytes=weights.nbytes,
            failed=update.failed,
        )

    async def _send(self, source: WeightSource) -> None:
        sent = False
        try:
            await source.send(SendOrder(version=self._version, path=self._rendezvous.url, format="broadcast"))
            sent = True
        finally:
            if not sent:
                self._group.place.abandon(self._rendezvous.update, f"the learner did not send version {self._version}")

    async def _announced(self, sending: asyncio.Task[None], timeout_s: float) -> WeightFile:
        """Wait until the learner has said what it sends. Raises `PublishFailed`."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    weights = self._group.place.announced(self._rendezvous.update)
                    if weights is not None:
                        return weights
                    if sending.done():
                        raise self._learner_failed(sending)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            late = f"the learner: send of version {self._version} did not begin within {timeout_s:g} s"
            raise PublishFailed(late) from error

    async def _suffered(self, sending: asyncio.Task[None]) -> bool:
        """Wait for the learner's end; tell whether another member broke it. Raises `PublishFailed` if it did itself."""
        await asyncio.wait({sending}, timeout=self._timeout_s)
        if not sending.done():
            raise PublishFailed(
                f"the learner: send of version {self._version} did not end within {self._timeout_s:g} s"
            )
        if sending.exception() is None:
            return False
        if self._group.learner_suffered(self._rendezvous.update):
            return True
        raise self._learner_failed(sending)

    async def _only_suffered(self, update: Update) -> set[str]:
        """Name the engines that failed because of another member, as each of their workers says."""
        failed = [seat for seat in self._seats if seat.name in update.failed]
        # One worker's error is enough for its engine to fail; a moment later, the others have theirs.
        deadline = time.monotonic() + min(_AFTERMATH_S, self._timeout_s * (1 - _SHARE))
        while "some" in map(self._group.suffered, failed) and time.monotonic() < deadline:  # noqa: ASYNC110 - polled
            await asyncio.sleep(_POLL_S)
        return {seat.name for seat in failed if self._group.suffered(seat) == "all"}

    def _should_repeat(self, update: Update, suffered: set[str], learner_suffered: bool) -> bool:
        """Tell whether somebody only suffered, leaving in `failed` who did more. Raises `PublishFailed`."""
        if not suffered and not learner_suffered:
            return False
        self.failed = {name: reason for name, reason in update.failed.items() if name not in suffered}
        if not self.failed:
            reason = next(iter(update.failed.values()), "the learner gave up, and no engine did")
            raise PublishFailed(f"a broadcast broke, and nobody is known to have broken it: {reason}")
        return True

    def _learner_failed(self, sending: asyncio.Task[None]) -> PublishFailed:
        failure = PublishFailed(f"the learner: send of version {self._version} failed: {sending.exception()}")
        failure.__cause__ = sending.exception()
        return failure
