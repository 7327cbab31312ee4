"""A process's membership of a broadcast's group: one at a time, left at the first fault, for good."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Generic, TypeVar

from torch.distributed import TCPStore

from asyncopd.tensors.rendezvous import BroadcastBroken, Rendezvous

GroupT = TypeVar("GroupT")


class Membership(Generic[GroupT]):
    """`group` is what moves the bytes, None until the member has made it for the group it is in now."""

    def __init__(self) -> None:
        self.group: GroupT | None = None
        self._place: tuple[int, str] | None = None
        self._store: TCPStore | None = None

    @contextlib.contextmanager
    def at(self, rendezvous: Rendezvous) -> Iterator[TCPStore]:
        """Be in the group of `rendezvous` for a block, and leave any other before; give the group's store.

        A `RuntimeError` in it, which is what stores and process groups raise, becomes `BroadcastBroken`, and the
        publisher is told that this member gave up because of another.
        """
        at_ease = False
        try:
            yield self._at(rendezvous)
            at_ease = True
        except RuntimeError as error:
            reason = _reason(error)
            if self._store is not None:
                _report(self._store, rendezvous, reason)
            raise BroadcastBroken(reason) from error
        finally:
            if not at_ease:
                self._leave()

    def _at(self, rendezvous: Rendezvous) -> TCPStore:
        place = (rendezvous.port, rendezvous.group)
        if self._store is None or self._place != place:
            self._leave()
            self._store = rendezvous.connect()
            self._place = place
        return self._store

    def _leave(self) -> None:
        self.group = None  # closes its connections, so that the others do not wait
        self._store = None


def _report(store: TCPStore, rendezvous: Rendezvous, reason: str) -> None:
    try:
        store.set(f"{rendezvous.update}/broken/{rendezvous.rank}", reason)
    except RuntimeError:
        return  # nobody is left to hear it


def _reason(error: RuntimeError) -> str:
    """Return what an error of a store or of gloo says, without the place in their sources and their advice."""
    first_line = str(error).partition("\n")[0]
    return re.sub(r"^\[\S+\] ", "", first_line).partition(". This is typically")[0]
