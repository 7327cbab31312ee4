"""Each call gets one result, whatever the tools do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from asyncopd.records import ToolCall, encode
from asyncopd.rollout.tools import call_tools


def call(name: str, index: int = 0, error: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"call_{index}", name=name, arguments=arguments, error=error)


async def test_results_come_in_the_order_of_the_calls(shop: type) -> None:
    calls = [call("price", 0, item="lamp"), call("raise", 1), call("price", 2, item="cup")]
    results = await call_tools(shop().tools, calls, timeout_s=1)
    assert [(r.call_id, r.content, r.failed) for r in results] == [
        ("call_0", "17", False),
        ("call_1", "error: ZeroDivisionError: division by zero", True),
        ("call_2", "4", False),
    ]


async def test_calls_of_one_turn_run_at_the_same_time() -> None:
    barrier = asyncio.Barrier(3)

    async def meet(arguments: Mapping[str, Any]) -> str:
        await barrier.wait()
        return "met"

    results = await call_tools({"meet": meet}, [call("meet", index) for index in range(3)], timeout_s=5)
    assert [r.content for r in results] == ["met"] * 3


@pytest.mark.parametrize(
    ("bad", "content"),
    [
        (call("hang"), "error: no answer within 0.02 s"),
        (call("", error="invalid JSON"), "error: invalid JSON"),
        (call("steal"), "error: there is no tool 'steal'; there are forge, hang, number, price, raise"),
        (call("price", item="\U0001f99c"), "error: KeyError: '\U0001f99c'"),
    ],
)
async def test_a_call_that_cannot_be_served_fails_alone(shop: type, bad: ToolCall, content: str) -> None:
    failed, fine = await call_tools(shop().tools, [bad, call("price", 1, item="cup")], timeout_s=0.02)
    assert (failed.content, failed.failed) == (content, True)
    assert (fine.content, fine.failed) == ("4", False)


async def test_a_tools_own_timeout_is_not_ours() -> None:
    async def impatient(arguments: Mapping[str, Any]) -> str:
        raise TimeoutError("the shop is closed")

    (result,) = await call_tools({"impatient": impatient}, [call("impatient")], timeout_s=5)
    assert result.content == "error: TimeoutError: the shop is closed"


async def test_output_is_text_that_can_be_stored(shop: type) -> None:
    async def surrogate(arguments: Mapping[str, Any]) -> str:
        return "a\ud800b"

    number, odd = await call_tools({**shop().tools, "odd": surrogate}, [call("number"), call("odd")], timeout_s=1)
    assert (number.content, odd.content) == ("7", "a?b")
    encode([number.message(), odd.message()])


async def test_cancelling_the_calls_cancels_the_tools() -> None:
    cancelled = asyncio.Event()

    async def wait(arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return ""

    task = asyncio.create_task(call_tools({"wait": wait}, [call("wait")], timeout_s=3600))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
