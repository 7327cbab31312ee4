"""Where arrays wait: a dictionary of keys over one append-only file.

Invariants
- A key that `put` has returned survives a crash, bit for bit.
- Any process of the machine can read a key's `PayloadRef` without talking to this one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from pathlib import Path

import msgspec
import xxhash

from asyncopd.errors import UserError
from asyncopd.runtime.durable import DurableFile

# Frame: magic, length of the key, length of the data, xxh3-64 of the data, then key and data.
_HEADER = struct.Struct("<4sIQQ")
_MAGIC = b"AOP1"


class PayloadRef(msgspec.Struct, frozen=True):
    """Where a payload lies."""

    path: str
    offset: int
    length: int
    checksum: int


class DamagedPayload(ValueError):
    """The bytes of a payload are not those that were put; the message names file and offset."""


def read_payload(ref: PayloadRef) -> bytes:
    """Return the payload at `ref`, in any process. Raises `DamagedPayload`."""
    with open(ref.path, "rb") as file:
        data = os.pread(file.fileno(), ref.length, ref.offset)
    if len(data) != ref.length or xxhash.xxh3_64_intdigest(data) != ref.checksum:
        raise DamagedPayload(f"{ref.path}: the payload at byte {ref.offset} is damaged; resume from a checkpoint")
    return data


class FilePayloadStore:
    """The payload store of the local runtime; owned by the main process."""

    def __init__(self, path: Path, needed: Collection[str] = ()) -> None:
        """Open the file at `path`, or make it; of a former life only the `needed` keys are kept.

        Raises `UserError`, and leaves the file as it is, if one of those is missing or damaged.
        """
        self._path = path
        frames, whole = _scan(path) if path.exists() else ({}, 0)
        lost = sorted(key for key in needed if not _readable(frames.get(key)))
        if lost:
            raise UserError(
                str(path),
                f"{len(lost)} payloads that the journal tells of are not there, {lost[0]!r} for one; "
                f"the file is whole up to byte {whole}",
                "bring the file back, or start a new run",
            )
        self._refs = {key: frames[key] for key in needed}
        self._file = DurableFile(path, length=whole)

    async def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`; durable on return."""
        name = key.encode()
        checksum = xxhash.xxh3_64_intdigest(data)
        offset = await self._file.append(_HEADER.pack(_MAGIC, len(name), len(data), checksum) + name + data)
        self._refs[key] = PayloadRef(str(self._path), offset + _HEADER.size + len(name), len(data), checksum)

    def ref(self, key: str) -> PayloadRef:
        """Return where `key` lies. Raises `KeyError`."""
        return self._refs[key]

    def get(self, key: str) -> bytes:
        """Return what `put` was given. Raises `KeyError`, `DamagedPayload`."""
        return read_payload(self._refs[key])

    def release(self, key: str) -> None:
        """Forget `key`; the bytes stay in the run directory as its record."""
        self._refs.pop(key, None)

    async def close(self) -> None:
        await self._file.close()


def recorded_payloads(path: Path) -> dict[str, PayloadRef]:
    """Return where every payload in the file at `path` lies, released ones too; the file is left as it is."""
    return _scan(path)[0]


def _readable(ref: PayloadRef | None) -> bool:
    if ref is None:
        return False
    try:
        read_payload(ref)
    except DamagedPayload:
        return False
    return True


def _scan(path: Path) -> tuple[dict[str, PayloadRef], int]:
    """Return all whole frames of the file up to one that a crash tore, and where that begins."""
    frames = {}
    end = path.stat().st_size
    position = 0
    with path.open("rb") as file:
        while position + _HEADER.size <= end:
            file.seek(position)
            magic, key_length, length, checksum = _HEADER.unpack(file.read(_HEADER.size))
            start = position + _HEADER.size + key_length
            if magic != _MAGIC or start + length > end:
                break
            key = file.read(key_length).decode()
            frames[key] = PayloadRef(str(path), start, length, checksum)
            position = start + length
    return frames, position
