from __future__ import annotations

import asyncio

import pytest

from asyncopd.engines.gate import Gate
from asyncopd.records import Version

OLD, NEW = Version(0, 1), Version(0, 2)


async def enter(gate: Gate, min_version: Version = OLD) -> Version:
    async with gate.enter(min_version) as version:
        return version


async def test_nobody_enters_a_shut_gate() -> None:
    gate = Gate(OLD)
    assert await enter(gate) == OLD
    await gate.shut()
    waiting = asyncio.create_task(enter(gate))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.commit(NEW)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.open()
    assert await waiting == NEW


async def test_shutting_waits_for_whoever_is_submitting() -> None:
    gate = Gate(OLD)
    async with gate.enter(OLD):
        shutting = asyncio.create_task(gate.shut())
        await asyncio.sleep(0.01)
        assert not shutting.done()
    await shutting


async def test_a_request_waits_for_its_version() -> None:
    gate = Gate(OLD)
    waiting = asyncio.create_task(enter(gate, NEW))
    await gate.shut()
    gate.open()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await gate.shut()
    gate.commit(NEW)
    gate.open()
    assert await waiting == NEW


async def test_nobody_enters_with_half_an_update() -> None:
    gate = Gate(OLD)
    await gate.shut()
    gate.whole = False
    gate.open()
    waiting = asyncio.create_task(enter(gate))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await gate.shut()
    gate.commit(NEW)
    gate.open()
    assert await waiting == NEW


async def test_a_waiter_that_gives_up_blocks_nobody() -> None:
    gate = Gate(OLD)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(enter(gate, NEW), 0.01)
    assert await enter(gate) == OLD
    gate.open()
    assert await enter(gate) == OLD


async def test_those_that_submit_do_not_wait_for_each_other() -> None:
    gate = Gate(OLD)
    async with gate.enter(OLD), gate.enter(OLD):
        shutting = asyncio.create_task(gate.shut())
        late = asyncio.create_task(enter(gate))
        await asyncio.sleep(0.01)
        assert not shutting.done()
    await shutting
    await asyncio.sleep(0.01)
    assert not late.done()
    gate.open()
    assert await late == OLD


async def test_a_shut_that_is_given_up_lets_requests_in_once_opened() -> None:
    gate = Gate(OLD)
    async with gate.enter(OLD):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gate.shut(), 0.01)
        gate.open()
        assert await enter(gate) == OLD
