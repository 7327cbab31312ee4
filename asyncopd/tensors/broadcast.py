"""All weights through a gloo process group: one flat buffer of the learner's, copied to every member.

Invariants:
- bytes move only once every member stands ready, and a send ends well only once every member has all of them;
- what a member received is checked against what the learner announced, before anybody can load it;
- a member leaves its group at the first fault, for good, so that no group is used with a member missing;
- every wait has a deadline, and a member that gives up because of another says so at the rendezvous.

Shapes: N bytes of the flat buffer.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterable

import torch
from torch.distributed import BarrierOptions, BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from asyncopd.records import SendOrder, Version, WeightFile
from asyncopd.tensors.files import check_body
from asyncopd.tensors.held import Held, flat_size
from asyncopd.tensors.mapped import view
from asyncopd.tensors.membership import Membership
from asyncopd.tensors.rendezvous import Rendezvous, announce, meet

_CHUNK_BYTES = 64 * 2**20


class Member:
    """The place of a process in the group that its orders name; one update at a time."""

    def __init__(self) -> None:
        self._membership: Membership[ProcessGroupGloo] = Membership()

    def announce(self, rendezvous: Rendezvous, weights: WeightFile) -> None:
        """Say, as the learner, what is going to be sent. Raises `BroadcastBroken`."""
        with self._membership.at(rendezvous) as store:
            announce(store, rendezvous, weights)

    def move(self, rendezvous: Rendezvous, flat_N: torch.Tensor) -> None:
        """Send `flat_N` as member 0, fill it as another; return once all have it. Raises `BroadcastBroken`."""
        deadline = time.monotonic() + rendezvous.timeout_s
        with self._membership.at(rendezvous) as store:
            meet(store, rendezvous)
            group = self._joined(rendezvous, store)
            for chunk in flat_N.split(_CHUNK_BYTES):
                self._broadcast(group, chunk, deadline)
            waiting = BarrierOptions()
            waiting.timeout = _until(deadline)
            group.barrier(waiting).wait()  # type: ignore[attr-defined]  # torch's stubs end early

    def _broadcast(self, group: ProcessGroupGloo, chunk: torch.Tensor, deadline: float) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = _until(deadline)
        group.broadcast([chunk], options).wait()  # type: ignore[attr-defined]

    def _joined(self, rendezvous: Rendezvous, store: TCPStore) -> ProcessGroupGloo:
        if self._membership.group is None:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = datetime.timedelta(seconds=rendezvous.timeout_s)
            options._devices = [ProcessGroupGloo.create_device(hostname=rendezvous.own_address())]
            members = PrefixStore(rendezvous.group, store)
            self._membership.group = ProcessGroupGloo(members, rendezvous.rank, rendezvous.members, options)
        return self._membership.group


class BroadcastSender:
    """The learner's end."""

    def __init__(self) -> None:
        self._member = Member()
        self._held = Held()

    def holds(self, version: Version) -> bool:
        """Tell whether `version` can be sent without the learner's tensors, which may have moved on."""
        return self._held.has(version)

    def send(self, order: SendOrder, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> WeightFile:
        """Send `order.version` to all members of the group that `order.path` names.

        `named_tensors` are left alone where the version is held already. Raises `BroadcastBroken`, and `ValueError`
        for a tensor that is neither float32 nor bfloat16.
        """
        fresh = None
        if not self.holds(order.version):
            fresh = list(named_tensors)
            self._held.take(order.version, fresh)
        weights = self._held.weights(order.path)
        self._send(Rendezvous.parse(order.path), weights, fresh)
        return weights

    def _send(self, rendezvous: Rendezvous, weights: WeightFile, fresh: list[tuple[str, torch.Tensor]] | None) -> None:
        """Announce and send what is held; `fresh` are the learner's own tensors, where they are still those."""
        self._member.announce(rendezvous, weights)
        self._member.move(rendezvous, self._held.flat_N)


class BroadcastReceiver:
    """The end of worker number `worker` of an engine."""

    def __init__(self, worker: int = 0) -> None:
        self._member = Member()
        self._worker = worker
        self._taken: str | None = None
        self._one_at_a_time = threading.Lock()  # a wait that was given up goes on in its thread, to its deadline

    def took(self, weights: WeightFile) -> bool:
        """Tell whether this worker took part in the update that `weights.path` names already."""
        return self._taken == weights.path

    def receive(self, weights: WeightFile) -> list[tuple[str, torch.Tensor]]:
        """Take part in the update that `weights.path` names; return its (name, view), which share one buffer.

        Raises `BroadcastBroken` where another member failed, and `TornWeights` where the bytes are not as announced.
        """
        engine = Rendezvous.parse(weights.path)
        data = bytearray(flat_size(weights))
        with self._one_at_a_time:
            self._member.move(engine.as_member(engine.rank + self._worker), torch.frombuffer(data, dtype=torch.uint8))
        self._taken = weights.path
        check_body(weights, data)
        return [(entry.name, view(data, entry)) for entry in weights.tensors]


def _until(deadline: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(0.001, deadline - time.monotonic()))
