"""A failing store costs misses, is spoken of twice, and is found again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncopd.scoring.cache.breaker import Breaker
from asyncopd.scoring.cache.errors import StoreUnavailable
from asyncopd.scoring.cache.memory import MemoryStore


class Flaky(MemoryStore):
    """Fails while `down`."""

    def __init__(self) -> None:
        super().__init__(10_000)
        self.down = False
        self.calls = 0

    async def get(self, keys):
        self._fail()
        return await super().get(keys)

    async def put(self, items):
        self._fail()
        await super().put(items)

    def _fail(self) -> None:
        self.calls += 1
        if self.down:
            raise StoreUnavailable("the score cache at nowhere failed (refused)")


async def test_an_outage_is_logged_once_at_each_end(caplog: pytest.LogCaptureFixture) -> None:
    store = Flaky()
    breaker = Breaker(store, pause_s=0.0)
    caplog.set_level(logging.INFO)
    assert await breaker.put({b"a": b"1"})
    store.down = True
    for _ in range(3):
        assert await breaker.get([b"a", b"b"]) == [None, None]
        assert not await breaker.put({b"b": b"2"})
    store.down = False
    assert await breaker.get([b"a", b"b"]) == [b"1", None]
    assert await breaker.put({b"b": b"2"})
    assert breaker.errors == 6
    assert [record.message for record in caplog.records] == [
        "the score cache at nowhere failed (refused); segments are scored without it until it answers again",
        "the score cache answers again",
    ]


async def test_calls_that_fail_together_are_one_outage_with_one_pause() -> None:
    class Hanging(Flaky):
        async def get(self, keys):
            await asyncio.sleep(0.01)
            return await super().get(keys)

    store = Hanging()
    breaker = Breaker(store, pause_s=0.1)
    store.down = True
    await asyncio.gather(*(breaker.get([b"a"]) for _ in range(8)))
    assert breaker.errors == 8
    store.down = False
    await asyncio.sleep(0.11)
    await breaker.put({b"a": b"1"})
    assert await breaker.get([b"a"]) == [b"1"]


async def test_a_store_that_is_down_is_left_alone_for_a_growing_pause() -> None:
    store = Flaky()
    breaker = Breaker(store, pause_s=0.05)
    store.down = True
    await breaker.get([b"a"])
    for _ in range(10):
        await breaker.get([b"a"])
    assert store.calls == 1
    await asyncio.sleep(0.06)
    await breaker.get([b"a"])
    await asyncio.sleep(0.06)
    await breaker.get([b"a"])
    assert store.calls == 2
