"""`DurableFile`: group commit, order, and a disk that refuses."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from asyncopd.errors import UserError
from asyncopd.runtime.durable import DurableFile


async def test_bytes_lie_in_the_order_of_the_calls_at_the_offsets_returned(tmp_path):
    file = DurableFile(tmp_path / "log")
    pieces = [f"{number};".encode() * (number % 5 + 1) for number in range(50)]
    offsets = await asyncio.gather(*(file.append(piece) for piece in pieces))
    await file.close()
    data = (tmp_path / "log").read_bytes()
    assert data == b"".join(pieces)
    assert all(data[offset:].startswith(piece) for offset, piece in zip(offsets, pieces, strict=True))


async def test_writers_that_arrive_together_share_an_fsync(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor)))
    file = DurableFile(tmp_path / "log")
    await asyncio.gather(*(file.append(b"x") for _ in range(100)))
    await file.close()
    assert len(synced) == 1


async def test_append_returns_only_after_the_fsync(tmp_path, monkeypatch):
    order = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (real(descriptor), order.append("synced")))
    file = DurableFile(tmp_path / "log")
    await file.append(b"x")
    order.append("returned")
    await file.close()
    assert order == ["synced", "returned"]


async def test_a_full_disk_fails_that_write_alone_and_leaves_no_trace(tmp_path, monkeypatch):
    file = DurableFile(tmp_path / "log")
    await file.append(b"before;")
    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        await file.append(b"lost;")
    monkeypatch.setattr(os, "fsync", real)
    offset = await file.append(b"after;")
    await file.close()
    assert (tmp_path / "log").read_bytes() == b"before;after;"
    assert offset == len(b"before;")


async def test_reopening_appends_at_the_end(tmp_path):
    for piece in (b"one;", b"two;"):
        file = DurableFile(tmp_path / "log")
        await file.append(piece)
        await file.close()
    assert (tmp_path / "log").read_bytes() == b"one;two;"
