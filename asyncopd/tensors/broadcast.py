"""All weights through a process group: one flat buffer of the learner's, copied to every member.

Invariants:
- bytes move only once every member stands ready, and a send ends well only once every member has all of them;
- what a member received is checked against what the learner announced, before anybody can load it;
- a member leaves its group at the first fault, for good, so that no group is used with a member missing;
- every wait has a deadline, and a member that gives up because of another says so at the rendezvous.

Shapes: N bytes of the flat buffer.
"""

from __future__ import annotations

import datetime
import re
import threading
import time
from collections.abc import Iterable

import msgspec
import torch
import xxhash
from torch.distributed import BarrierOptions, BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from asyncopd.records import SendOrder, TensorEntry, Version, WeightFile
from asyncopd.tensors.files import check_body
from asyncopd.tensors.mapped import dtype_name, raw_bytes, view
from asyncopd.tensors.rendezvous import BroadcastBroken, Rendezvous, announce, meet, report_broken

_CHUNK_BYTES = 64 * 2**20
_ALIGNMENT = 64


class Member:
    """The place of a process in the group that its orders name; one update at a time."""

    def __init__(self) -> None:
        self._place: tuple[int, str] | None = None
        self._store: TCPStore | None = None
        self._group: ProcessGroupGloo | None = None

    def announce(self, rendezvous: Rendezvous, weights: WeightFile) -> None:
        """Say, as the learner, what is going to be sent. Raises `BroadcastBroken`."""
        try:
            announce(self._at(rendezvous), rendezvous, weights)
        except RuntimeError as error:
            self._leave()
            raise BroadcastBroken(_reason(error)) from error

    def move(self, rendezvous: Rendezvous, flat_N: torch.Tensor) -> None:
        """Send `flat_N` as member 0, fill it as another; return once all have it. Raises `BroadcastBroken`."""
        store = self._at(rendezvous)
        deadline = time.monotonic() + rendezvous.timeout_s
        try:
            meet(store, rendezvous)
            group = self._joined(rendezvous, store)
            for chunk in flat_N.split(_CHUNK_BYTES):
                self._broadcast(group, chunk, deadline)
            waiting = BarrierOptions()
            waiting.timeout = _until(deadline)
            group.barrier(waiting).wait()  # type: ignore[attr-defined]  # torch's stubs end early
        except RuntimeError as error:  # what stores and gloo raise, time-outs among it
            reason = _reason(error)
            report_broken(store, rendezvous, reason)
            self._leave()
            raise BroadcastBroken(reason) from error

    def _broadcast(self, group: ProcessGroupGloo, chunk: torch.Tensor, deadline: float) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = _until(deadline)
        group.broadcast([chunk], options).wait()  # type: ignore[attr-defined]

    def _at(self, rendezvous: Rendezvous) -> TCPStore:
        """Return the store of the update's group, leaving any other group."""
        place = (rendezvous.port, rendezvous.group)
        if self._store is None or self._place != place:
            self._leave()
            self._store = rendezvous.connect()
            self._place = place
        return self._store

    def _joined(self, rendezvous: Rendezvous, store: TCPStore) -> ProcessGroupGloo:
        if self._group is None:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = datetime.timedelta(seconds=rendezvous.timeout_s)
            options._devices = [ProcessGroupGloo.create_device(hostname=rendezvous.own_address())]
            members = PrefixStore(rendezvous.group, store)
            self._group = ProcessGroupGloo(members, rendezvous.rank, rendezvous.members, options)
        return self._group

    def _leave(self) -> None:
        self._group = None  # closes its connections, so that the others do not wait
        self._store = None


class Held:
    """A copy of the weights sent last, in one flat buffer of main memory, so that they can be sent again later."""

    def __init__(self) -> None:
        self.flat_N = torch.empty(0, dtype=torch.uint8)
        self._weights: WeightFile | None = None

    def has(self, version: Version) -> bool:
        """Tell whether the copy is of `version`."""
        return self._weights is not None and self._weights.version == version

    def weights(self, path: str) -> WeightFile:
        """Return what the copy is to be announced as, at the rendezvous `path`."""
        assert self._weights is not None, "nothing is held yet"
        return msgspec.structs.replace(self._weights, path=path)

    def take(self, version: Version, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Copy `named_tensors`, which are `version`. Raises `ValueError` for a dtype that cannot be published."""
        self._weights = None
        size = sum(_aligned(tensor.nbytes) for _, tensor in named_tensors)
        if len(self.flat_N) != size:
            self.flat_N = torch.zeros(size, dtype=torch.uint8)
        flat_N = self.flat_N.numpy()
        hasher = xxhash.xxh3_64()
        entries = []
        offset = 0
        for name, tensor in named_tensors:
            data = raw_bytes(name, tensor)
            flat_N[offset : offset + data.nbytes] = data
            hasher.update(data.data)
            shape = tuple(tensor.shape)
            entries.append(
                TensorEntry(name=name, dtype=dtype_name(tensor), shape=shape, offset=offset, nbytes=data.nbytes)
            )
            offset += _aligned(data.nbytes)
        checksum = hasher.intdigest()
        self._weights = WeightFile(
            version=version,
            path="",
            format="broadcast",
            tensors=tuple(entries),
            checksum=checksum,
            dense_checksum=checksum,
        )


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
        if not self.holds(order.version):
            self._held.take(order.version, list(named_tensors))
        rendezvous = Rendezvous.parse(order.path)
        weights = self._held.weights(order.path)
        self._member.announce(rendezvous, weights)
        self._member.move(rendezvous, self._held.flat_N)
        return weights


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
        rendezvous = engine.as_member(engine.rank + self._worker)
        data = bytearray(sum(_aligned(entry.nbytes) for entry in weights.tensors))
        with self._one_at_a_time:
            self._member.move(rendezvous, torch.frombuffer(data, dtype=torch.uint8))
        self._taken = weights.path
        check_body(weights, data)
        return [(entry.name, view(data, entry)) for entry in weights.tensors]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _until(deadline: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _reason(error: RuntimeError) -> str:
    """Return what an error of a store or of gloo says, without the place in their sources and their advice."""
    first_line = str(error).partition("\n")[0]
    return re.sub(r"^\[\S+\] ", "", first_line).partition(". This is typically")[0]
