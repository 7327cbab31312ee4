"""One contract for every store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncopd.config.scoring import ScoringSection
from asyncopd.errors import UserError
from asyncopd.scoring.cache import StoreUnavailable, check, open_store
from asyncopd.scoring.cache.redis import RedisStore
from asyncopd.seams import ScoreStore

pytestmark = pytest.mark.integration


@pytest.fixture(params=["memory", "embedded", "redis-server"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ScoreStore]:
    if request.param == "redis-server":
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed")
        address = tmp_path / "redis.sock"
        process = await asyncio.create_subprocess_exec(
            *(program, "--port", "0", "--unixsocket", str(address), "--save", ""), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        while b"eady to accept connections" not in await process.stdout.readline():
            pass
        section = ScoringSection(cache=f"unix://{address}")
    else:
        process, section = None, ScoringSection(cache=request.param, cache_mib=4)
    async with open_store(section, tmp_path / "cache") as opened:
        assert opened is not None
        yield opened
    if process is not None:
        process.terminate()
        await process.wait()


async def test_many_keys_come_back_in_order_with_holes(store: ScoreStore) -> None:
    items = {b"key %d" % number: bytes([number]) * number * 100 for number in range(100)}
    await store.put(items)
    asked = [b"absent", *items, b"also absent", b"key 3", b"key 3"]
    assert await store.get(asked) == [None, *items.values(), None, items[b"key 3"], items[b"key 3"]]
    assert await store.get([]) == []
    await store.put({})


async def test_values_are_binary_and_overwritten(store: ScoreStore) -> None:
    value = bytes(range(256)) * 10 + b"\r\n$-1\r\n"
    await store.put({b"\x00\xffk\r\n": b"old"})
    await store.put({b"\x00\xffk\r\n": value, b"empty": b""})
    assert await store.get([b"\x00\xffk\r\n", b"empty"]) == [value, b""]


async def test_figures_count_entries_and_bytes(store: ScoreStore) -> None:
    await store.put({b"a": bytes(5000), b"b": bytes(5000)})
    figures = await store.stats()
    assert figures["entries"] == 2 and figures["bytes"] >= 10_000


async def test_calls_may_overlap(store: ScoreStore) -> None:
    async def use(number: int) -> bool:
        await store.put({b"%d" % number: bytes([number]) * 1000})
        return await store.get([b"%d" % number]) == [bytes([number]) * 1000]

    assert all(await asyncio.gather(*(use(number) for number in range(50))))


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_the_budget_is_kept_and_the_newest_stay(kind: str, tmp_path: Path) -> None:
    async with open_store(ScoringSection(cache=kind, cache_mib=4), tmp_path) as store:
        assert store is not None
        for number in range(100):
            await store.put({b"%d" % number: bytes(100_000)})
        held = await store.get([b"%d" % number for number in range(100)])
        kept = [value is not None for value in held]
        assert 5 < sum(kept) < 42 and kept[-1]
        # Valkey counts its own tables and buffers too.
        assert (await store.stats())["bytes"] < 5 * 2**20


async def test_off_is_no_store(tmp_path: Path) -> None:
    async with open_store(ScoringSection(cache="off"), tmp_path) as store:
        assert store is None


@pytest.mark.parametrize("cache", ["embedded", "memory", "off"])
async def test_what_this_machine_has_passes_the_check(cache: str) -> None:
    await check(ScoringSection(cache=cache))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://someone:secret@127.0.0.1:{port}/0", "127.0.0.1:{port}"),
        ("rediss://127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("unix:///nowhere/redis.sock", "/nowhere/redis.sock"),
    ],
)
async def test_an_unreachable_redis_is_found_before_the_run(url: str, address: str, unused_tcp_port: int) -> None:
    with pytest.raises(UserError) as caught:
        await check(ScoringSection(cache=url.format(port=unused_tcp_port)))
    message = str(caught.value)
    assert message.startswith(f"scoring.cache: no Redis answers at {address.format(port=unused_tcp_port)} (")
    assert message.endswith("start it there, correct the URL, or set scoring.cache=embedded")
    assert "secret" not in message and "\n" not in message


async def test_a_reachable_redis_passes_the_check(tmp_path: Path, embedded) -> None:
    async with embedded(tmp_path) as store:
        await check(ScoringSection(cache=f"unix://{store.socket}"))


@pytest.mark.parametrize(
    "talk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*abc\r\n", b"+OK\r\n" * 9, b"*1\r\n$1\r\nx\r\n" * 9, b""]
)
async def test_garbage_from_a_server_is_unavailability(talk: bytes, unused_tcp_port: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(talk)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", unused_tcp_port):
        store = RedisStore(f"redis://127.0.0.1:{unused_tcp_port}")
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{unused_tcp_port} failed"):
            await store.get([b"a", b"b"])
        await store.close()


async def test_a_silent_server_costs_a_bounded_wait(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncopd.scoring.cache.redis._ANSWER_S", 0.1)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", unused_tcp_port):
        store = RedisStore(f"redis://127.0.0.1:{unused_tcp_port}")
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(store.get([b"a"]), 2)
        await store.close()
