"""Publishing weights by broadcast, through a process group of the learner and the engines' workers.

Invariants:
- a group is of one learner and one set of engines; a fault, or an engine that comes or goes, ends it for good;
- with gloo, engines generate while the bytes move; with nccl they move behind the freeze, into the model;
- who broke a broadcast is named, and the engines that only suffered it are served by a new group at once;
- one publish or catch-up runs at a time, and each of its waits has a deadline.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import msgspec

from asyncopd.records import PublishReport, Version
from asyncopd.seams import WeightReceiver, WeightSource
from asyncopd.tensors.rendezvous import Transport, check_host
from asyncopd.weights.delivery import Delivery
from asyncopd.weights.group import Group
from asyncopd.weights.protocol import NoEngineCame


class CollectiveWeightSync:
    """Implements `seams.WeightSync` with one broadcast an update.

    `receivers` gives those of the engines alive now, each of which has `workers` processes. `host` is the address of
    this machine that learner and workers meet at. The learner has `learner_timeout_s` to begin, as it may be in a
    step; from then on each phase has `timeout_s`. Raises `UserError` for a `host` that this machine does not have.
    """

    def __init__(
        self,
        receivers: Callable[[], Sequence[WeightReceiver]],
        *,
        transport: Transport,
        host: str,
        workers: int,
        timeout_s: float,
        learner_timeout_s: float,
    ) -> None:
        check_host(host)
        self._receivers = receivers
        self._transport: Transport = transport
        self._host = host
        self._workers = workers
        self._timeout_s = timeout_s
        self._learner_timeout_s = learner_timeout_s
        self._one_at_a_time = asyncio.Lock()
        self._numbers = itertools.count()
        self._group: Group | None = None
        self._ended: Group | None = None
        self._newest: tuple[Version, WeightSource] | None = None

    async def publish(self, version: Version, source: WeightSource) -> PublishReport:
        """Bring every engine to `version`; the report names those that did not come. Raises `PublishFailed`."""
        async with self._one_at_a_time:
            self._newest = (version, source)
            return await self._bring(tuple(self._receivers()), version, source)

    async def catch_up(self, receiver: WeightReceiver) -> Version | None:
        """Bring one engine to the newest version, None if nothing was published yet. Raises `PublishFailed`."""
        async with self._one_at_a_time:
            if self._newest is None:
                return None
            version, source = self._newest
            await self._bring((receiver,), version, source)
            return version

    def close(self) -> None:
        """End the group and its meeting place."""
        self._end_group()
        self._end_group()

    def _end_group(self) -> None:
        """Use the group no more; whoever waits at its meeting place, which stays a while, hears that it is in vain."""
        if self._ended is not None:
            self._ended.close()
        self._ended, self._group = self._group, None

    async def _bring(
        self, receivers: tuple[WeightReceiver, ...], version: Version, source: WeightSource
    ) -> PublishReport:
        """Broadcast to `receivers`; where some break it, once more to the others.

        Without any, the learner still takes note of the version, for those that catch up with it.
        """
        failed: dict[str, str] = {}
        while receivers or not failed:
            delivery = Delivery(self._group_of(receivers), next(self._numbers), version, self._timeout_s)
            try:
                report = await delivery.run(source, self._learner_timeout_s)
            finally:
                if not delivery.clean:
                    self._end_group()
            failed |= delivery.failed
            if report is not None:
                return msgspec.structs.replace(report, failed=failed)
            receivers = tuple(receiver for receiver in receivers if receiver.name not in failed)
        raise NoEngineCame(failed)

    def _group_of(self, receivers: tuple[WeightReceiver, ...]) -> Group:
        """Return a group of exactly `receivers`: the one there is, or a new one."""
        if self._group is None or not self._group.consists_of(receivers):
            self._end_group()
            self._group = Group(receivers, self._transport, self._host, self._workers)
        return self._group
