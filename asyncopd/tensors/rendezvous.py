"""Where the members of a broadcast meet: a key-value store, which the path of an update's weight file names.

The process that publishes hosts the store; the learner, which is member 0, and the engines' workers are its clients.
Keys of update U: `U/file` is what the learner sends, set before it sends; `U/<door>/R` says that member R stands at
that door; `U/broken/R` that it gave up because of another; `U/abandoned` that the publisher did, and why.
"""

from __future__ import annotations

import datetime
import socket
import time
from typing import Any, Literal, cast
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
from torch.distributed import TCPStore

from asyncopd.errors import UserError
from asyncopd.records import WeightFile

Transport = Literal["gloo", "nccl"]

_POLL_S = 0.002


class BroadcastBroken(RuntimeError):
    """A broadcast ended because of another member, or of the network between; the message says what is known."""


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """One update of one group, as a member of rank `rank` is told of it.

    `members` meet, the learner among them, and each gives up after `timeout_s` seconds. A group that was broken is
    never named again.
    """

    transport: Transport
    host: str
    port: int
    group: str
    members: int
    update: int
    rank: int
    timeout_s: float

    @property
    def url(self) -> str:
        query = urlencode(
            {"members": self.members, "update": self.update, "rank": self.rank, "timeout_s": self.timeout_s}
        )
        return f"{self.transport}://{self.host}:{self.port}/{self.group}?{query}"

    @classmethod
    def parse(cls, url: str) -> Rendezvous:
        """Return what `url` says. Raises `msgspec.ValidationError` for a URL that `url` did not give."""
        parts = urlsplit(url)
        query: dict[str, Any] = {name: values[0] for name, values in parse_qs(parts.query).items()}
        fields = query | {
            "transport": parts.scheme,
            "host": parts.hostname,
            "port": parts.port,
            "group": parts.path.removeprefix("/"),
        }
        return msgspec.convert(fields, cls, strict=False)

    def as_member(self, rank: int) -> Rendezvous:
        """Return the same update for another member."""
        return msgspec.structs.replace(self, rank=rank)

    def connect(self) -> TCPStore:
        """Connect to the store. Raises `BroadcastBroken` where nobody hosts it any more."""
        self.own_address()  # refused at once where the store, of its own accord, would try again for long
        timeout = datetime.timedelta(seconds=self.timeout_s)
        return TCPStore(self.host, self.port, is_master=False, wait_for_workers=False, timeout=timeout)

    def own_address(self) -> str:
        """Return this machine's address on the way to the store: the one where the other members can reach it."""
        try:
            with socket.create_connection((self.host, self.port), timeout=self.timeout_s) as connection:
                address: str = connection.getsockname()[0]
        except OSError as error:
            raise BroadcastBroken(f"nobody is met at {self.host}:{self.port}: {error}") from error
        return address


class MeetingPlace:
    """Hosts the store of one group at an address of this machine, until it is closed."""

    def __init__(self, host: str) -> None:
        listening = socket.create_server((host, 0))  # of its own accord, the store listens on every address
        self.port: int = listening.getsockname()[1]
        self._store: TCPStore | None = TCPStore(
            host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )

    def announced(self, update: int) -> WeightFile | None:
        """Return what the learner said it sends, if it said so yet."""
        data = self._found(f"{update}/file")
        return None if data is None else msgspec.json.decode(data, type=WeightFile)

    def broken(self, update: int, rank: int) -> bool:
        """Tell whether a member gave up because of another."""
        return self._found(f"{update}/broken/{rank}") is not None

    def abandon(self, update: int, reason: str) -> None:
        """Tell members that still wait for one another that it is in vain."""
        if self._store is not None:
            self._store.set(f"{update}/abandoned", reason)

    def close(self) -> None:
        """End the store; whoever waits at it fails at once."""
        self._store = None

    def _found(self, key: str) -> bytes | None:
        assert self._store is not None, "the meeting place is closed"
        return cast(bytes, self._store.get(key)) if self._store.check([key]) else None


def check_host(host: str) -> None:
    """Raise `UserError` unless `host` is an address of this machine, where a store can be hosted."""
    try:
        socket.create_server((host, 0)).close()
    except OSError as error:
        problem = f"nobody can listen there ({error})"
        raise UserError(
            f"weights.host {host}", problem, "give an address of this machine that workers reach"
        ) from error


def announce(store: TCPStore, rendezvous: Rendezvous, weights: WeightFile) -> None:
    """Say what is going to be sent."""
    store.set(f"{rendezvous.update}/file", msgspec.json.encode(weights).decode())


def meet(store: TCPStore, rendezvous: Rendezvous, door: str = "here") -> None:
    """Return once every member stands at `door`. Raises `BroadcastBroken`."""
    deadline = time.monotonic() + rendezvous.timeout_s
    store.set(f"{rendezvous.update}/{door}/{rendezvous.rank}", "")
    absent = list(range(rendezvous.members))
    while absent := [rank for rank in absent if not store.check([f"{rendezvous.update}/{door}/{rank}"])]:
        wait_on(store, rendezvous, deadline, f"members {absent} did not come")


def wait_on(store: TCPStore, rendezvous: Rendezvous, deadline: float, what: str) -> None:
    """Wait a moment for others. Raises `BroadcastBroken` where that is in vain, or too late: then for `what`."""
    if store.check([f"{rendezvous.update}/abandoned"]):
        raise BroadcastBroken(store.get(f"{rendezvous.update}/abandoned").decode())
    if time.monotonic() > deadline:
        raise BroadcastBroken(f"{what} within {rendezvous.timeout_s:g} s")
    time.sleep(_POLL_S)
