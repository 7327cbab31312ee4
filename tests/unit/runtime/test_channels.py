"""A channel leases each item once, in order, and makes producers wait for room."""

from __future__ import annotations

import asyncio

import pytest

from asyncopd.runtime.channels import AsyncioChannel
from asyncopd.seams import DeadlineExceeded


async def test_items_are_leased_once_by_priority_then_arrival():
    channel = AsyncioChannel("test", capacity=10)
    for item, priority in (("late", 2), ("first", 1), ("second", 1)):
        await channel.put(item, priority=priority)
    assert [await channel.lease() for _ in range(3)] == ["first", "second", "late"]


async def test_put_waits_for_an_acknowledgement_not_for_a_lease():
    channel = AsyncioChannel("test", capacity=1)
    await channel.put("a")
    blocked = asyncio.create_task(channel.put("b"))
    item = await channel.lease()
    await asyncio.sleep(0)
    assert not blocked.done()
    channel.ack(item)
    await blocked


async def test_a_put_past_its_deadline_names_the_channel():
    channel = AsyncioChannel("scoring", capacity=1)
    await channel.put("a")
    with pytest.raises(DeadlineExceeded, match="'scoring' held 1 items"):
        await channel.put("b", timeout_s=0.01)


async def test_a_cancelled_lease_loses_nothing():
    channel = AsyncioChannel("test", capacity=2)
    waiting = asyncio.create_task(channel.lease())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await channel.put("a")
    assert await channel.lease() == "a"
