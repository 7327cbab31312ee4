"""Payloads survive crashes bit for bit, and damage is never read as data."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest

from asyncopd.errors import UserError
from asyncopd.runtime.payloads import DamagedPayload, FilePayloadStore


async def test_what_is_put_is_got_also_after_reopening(tmp_path):
    store = FilePayloadStore(tmp_path / "payloads.bin")
    items = {f"key-{number}": bytes([number]) * (number * 37) for number in range(20)}
    await asyncio.gather(*(store.put(key, data) for key, data in items.items()))
    assert {key: store.get(key) for key in items} == items
    await store.close()
    again = FilePayloadStore(tmp_path / "payloads.bin", needed=items)
    assert {key: again.get(key) for key in items} == items
    await again.close()


@pytest.mark.parametrize("torn", [1, 10, 100, 110])
async def test_a_frame_torn_by_a_crash_is_dropped_and_the_rest_stays(tmp_path, torn):
    path = tmp_path / "payloads.bin"
    store = FilePayloadStore(path)
    await store.put("first", b"a" * 100)
    await store.put("second", b"b" * 100)
    await store.close()
    path.write_bytes(path.read_bytes()[:-torn])
    store = FilePayloadStore(path, needed=["first"])
    assert store.get("first") == b"a" * 100
    with pytest.raises(KeyError):
        store.get("second")
    await store.put("third", b"c" * 10)
    await store.close()
    store = FilePayloadStore(path, needed=["third"])
    assert store.get("third") == b"c" * 10
    await store.close()


@pytest.mark.parametrize("harm", ["cut", "altered"])
async def test_a_needed_payload_that_is_lost_is_told_and_the_file_is_left_as_it_is(tmp_path, harm):
    path = tmp_path / "payloads.bin"
    store = FilePayloadStore(path)
    for key in ("first", "second", "third"):
        await store.put(key, b"a" * 100)
    await store.close()
    data = path.read_bytes()
    path.write_bytes(data[:200] if harm == "cut" else data[:200] + b"#" + data[201:])
    harmed = path.read_bytes()
    with pytest.raises(UserError, match=r"payloads.bin: \d payloads that the journal tells of are not there"):
        FilePayloadStore(path, needed=["first", "second"])
    assert path.read_bytes() == harmed


async def test_damaged_bytes_are_refused(tmp_path):
    path = tmp_path / "payloads.bin"
    store = FilePayloadStore(path)
    await store.put("key", b"a" * 100)
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedPayload, match=r"payloads.bin"):
        store.get("key")
    await store.close()


async def test_another_process_reads_a_reference(tmp_path):
    store = FilePayloadStore(tmp_path / "payloads.bin")
    await store.put("key", b"hello")
    reference = msgspec.json.encode(store.ref("key")).decode()
    code = (
        "import msgspec, sys; from asyncopd.runtime.payloads import PayloadRef, read_payload;"
        "print(read_payload(msgspec.json.decode(sys.argv[1], type=PayloadRef)))"
    )
    output = subprocess.run([sys.executable, "-c", code, reference], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "b'hello'"
    await store.close()


async def test_a_released_key_is_gone(tmp_path):
    store = FilePayloadStore(tmp_path / "payloads.bin")
    await store.put("key", b"data")
    store.release("key")
    store.release("key")
    with pytest.raises(KeyError):
        store.get("key")
    await store.close()
