"""The store in memory keeps to its budget."""

from __future__ import annotations

from asyncopd.scoring.cache.memory import MemoryStore


async def test_the_least_recently_used_go_first() -> None:
    store = MemoryStore(budget=30)
    await store.put({b"a": b"123456789", b"b": b"123456789", b"c": b"123456789"})
    assert await store.get([b"a"]) == [b"123456789"]
    await store.put({b"d": b"123456789"})
    assert await store.get([b"a", b"b", b"c", b"d"]) == [b"123456789", None, b"123456789", b"123456789"]


async def test_bytes_of_keys_and_values_stay_within_the_budget() -> None:
    store = MemoryStore(budget=100)
    for number in range(50):
        await store.put({b"k%d" % (number % 7): bytes(number)})
        assert (await store.stats())["bytes"] <= 100
    await store.put({b"k6": b"1234"})
    await store.put({b"k6": b"12345678"})
    held = await store.get([b"k%d" % number for number in range(7)])
    assert (await store.stats())["bytes"] == sum(len(value) + 2 for value in held if value is not None)


async def test_a_value_above_the_budget_is_not_kept() -> None:
    store = MemoryStore(budget=10)
    await store.put({b"key": bytes(20)})
    assert await store.get([b"key"]) == [None]
    assert await store.stats() == {"entries": 0, "bytes": 0}
