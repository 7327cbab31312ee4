"""Runs the tools an agent calls: whatever they do, each call gets one result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from asyncopd.environment.tools import ToolError
from asyncopd.records import ToolCall, ToolResult
from asyncopd.seams import Tool


async def call_tools(tools: Mapping[str, Tool], calls: Sequence[ToolCall], timeout_s: float) -> list[ToolResult]:
    """Run the calls at the same time and return their results in order; raises nothing.

    A call that could not be read, names no tool, raises, or takes longer than `timeout_s` seconds gives a
    failed result that tells the agent so.
    """
    return list(await asyncio.gather(*(_call(tools, call, timeout_s) for call in calls)))


async def _call(tools: Mapping[str, Tool], call: ToolCall, timeout_s: float) -> ToolResult:
    if call.error is not None:
        return _failed(call, call.error)
    tool = tools.get(call.name)
    if tool is None:
        return _failed(call, f"there is no tool {call.name!r}; there are {', '.join(sorted(tools)) or 'none'}")
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            output = await tool(call.arguments)
    except ToolError as error:
        return _failed(call, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary around code that may do anything
        if limit.expired():
            return _failed(call, f"no answer within {timeout_s:g} s")
        return _failed(call, f"{type(error).__name__}: {error}")
    return ToolResult(call_id=call.id, name=call.name, content=_storable(str(output)))


def _failed(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(call_id=call.id, name=call.name, content=_storable(f"error: {reason}"), failed=True)


def _storable(text: str) -> str:
    """Return the text with lone surrogates, which no encoding can carry, replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
