"""An append-only file whose writers share each fsync.

Invariants
- `append` returns only when its bytes, and all appended before, are on disk.
- Bytes lie in the order of the calls; a failed write leaves no trace of itself.
- At most one write is under way, in a thread, so the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from asyncopd.errors import UserError


class DurableFile:
    """Appends with group commit: whatever arrives while the disk is busy goes out together next."""

    def __init__(self, path: Path, length: int | None = None) -> None:
        """Append to the file at `path`, of which the first `length` bytes are kept, by default all.

        Raises `UserError` if it cannot be written.
        """
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
            if length is not None:
                self._file.truncate(length)
        except OSError as error:
            raise self._refusal(error) from None
        self._length = self._file.seek(0, os.SEEK_END)
        self._pending: list[tuple[bytes, asyncio.Future[int]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, data: bytes) -> int:
        """Write `data` and return its offset once durable. Raises `UserError` if the disk refuses."""
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append((data, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._drain())
        return await written

    async def close(self) -> None:
        """Wait for what is pending, then close."""
        if self._writer is not None:
            await self._writer
        self._file.close()

    async def _drain(self) -> None:
        while self._pending:
            taken, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._write, b"".join(data for data, _ in taken))
            except OSError as error:
                refusal = self._refusal(error)
                for _, written in taken:
                    if not written.done():
                        written.set_exception(refusal)
                continue
            for data, written in taken:
                if not written.done():
                    written.set_result(self._length)
                self._length += len(data)
        self._writer = None

    def _refusal(self, error: OSError) -> UserError:
        return UserError(str(self._path), f"cannot be written ({error.strerror})", "make room for it, then resume")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self._length)
            raise
