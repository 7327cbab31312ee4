"""The event log: one JSON object a line. Replaying it through `Scheduler.apply` rebuilds the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncopd.errors import UserError
from asyncopd.runtime.durable import DurableFile
from asyncopd.scheduler.events import AnyEvent

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Journal:
    """Appends events durably. Opening drops a last line that a crash tore."""

    def __init__(self, path: Path, length: int | None = None) -> None:
        self._file = DurableFile(path, length)

    @classmethod
    def reopen(cls, path: Path) -> tuple[Journal, list[AnyEvent]]:
        """Open the journal of an interrupted run. Returns it with the events it holds.

        Raises `UserError` if a line other than the last is not an event.
        """
        whole = _whole_lines(path)
        return cls(path, len(whole)), _events(path, whole)

    async def append(self, events: Sequence[AnyEvent]) -> None:
        """Return once all `events` are on disk, in order."""
        await asyncio.gather(*(self._file.append(_encoder.encode(event) + b"\n") for event in events))

    async def close(self) -> None:
        await self._file.close()


def read_journal(path: Path) -> list[AnyEvent]:
    """Return the events of the journal at `path`, which is left as it is. Raises `UserError` as `reopen` does."""
    return _events(path, _whole_lines(path))


def _whole_lines(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def _events(path: Path, lines: bytes) -> list[AnyEvent]:
    events = []
    for number, line in enumerate(lines.splitlines(), 1):
        try:
            events.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise UserError(f"{path}:{number}", f"is not an event ({error})", "start a new run") from None
    return events
