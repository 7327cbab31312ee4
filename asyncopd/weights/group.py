"""A process group seen from the publisher: who is in it, at which ranks, and where its members meet.

The learner is member 0; the workers of the first engine follow, then those of the second.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from asyncopd.records import Manifest, Version
from asyncopd.seams import WeightReceiver
from asyncopd.tensors.rendezvous import MeetingPlace, Rendezvous, Transport


class Group:
    """The learner and `receivers`, each of `workers` processes; ends when it is closed."""

    def __init__(self, receivers: Sequence[WeightReceiver], transport: Transport, host: str, workers: int) -> None:
        self.receivers = tuple(receivers)
        self.transport: Transport = transport
        self.place = MeetingPlace(host)
        self._host = host
        self._workers = workers
        self._name = secrets.token_hex(4)  # a port may be given out again, a name never is

    def consists_of(self, receivers: Sequence[WeightReceiver]) -> bool:
        """Tell whether these are the group's, one by one; an engine replaced under its old name is another."""
        return len(receivers) == len(self.receivers) and all(
            one is other for one, other in zip(receivers, self.receivers, strict=True)
        )

    def rendezvous(self, update: int, timeout_s: float) -> Rendezvous:
        """Return update number `update` as the learner is told of it."""
        return Rendezvous(
            transport=self.transport,
            host=self._host,
            port=self.place.port,
            group=self._name,
            members=1 + self._workers * len(self.receivers),
            update=update,
            rank=0,
            timeout_s=timeout_s,
        )

    def seats(self, rendezvous: Rendezvous) -> list[Seat]:
        """Return the receivers, each with its place in an update."""
        return [
            Seat(receiver, rendezvous.as_member(1 + number * self._workers), self.place)
            for number, receiver in enumerate(self.receivers)
        ]

    def suffered(self, seat: Seat) -> Literal["all", "some", "none"]:
        """Say how many workers of an engine gave up because of another member."""
        ranks = range(seat.rendezvous.rank, seat.rendezvous.rank + self._workers)
        broken = [self.place.broken(seat.rendezvous.update, rank) for rank in ranks]
        return "all" if all(broken) else "some" if any(broken) else "none"

    def learner_suffered(self, update: int) -> bool:
        """Tell whether the learner gave up because of another member."""
        return self.place.broken(update, 0)

    def close(self) -> None:
        """End the meeting place; members that still wait there fail at once."""
        self.place.close()


class Seat:
    """A receiver that is told of its own rank; the other members wait for it no longer than it takes part."""

    def __init__(self, receiver: WeightReceiver, rendezvous: Rendezvous, place: MeetingPlace) -> None:
        self.name = receiver.name
        self.rendezvous = rendezvous
        self._receiver = receiver
        self._place = place

    async def prepare(self, manifest: Manifest) -> None:
        with self._or_leave():
            await self._receiver.prepare(self._addressed(manifest))

    async def freeze(self) -> None:
        with self._or_leave():
            await self._receiver.freeze()

    async def receive(self, manifest: Manifest) -> None:
        with self._or_leave():
            await self._receiver.receive(self._addressed(manifest))

    async def commit(self, version: Version) -> None:
        await self._receiver.commit(version)

    async def thaw(self) -> None:
        await self._receiver.thaw()

    @contextlib.contextmanager
    def _or_leave(self) -> Iterator[None]:
        """Let nobody wait for an engine that fails the block."""
        taking_part = False
        try:
            yield
            taking_part = True
        finally:
            if not taking_part:
                update = self.rendezvous.update
                self._place.abandon(update, f"engine {self.name} takes no part in update {update}")

    def _addressed(self, manifest: Manifest) -> Manifest:
        files = tuple(msgspec.structs.replace(file, path=self.rendezvous.url) for file in manifest.files)
        return Manifest(files=files)
