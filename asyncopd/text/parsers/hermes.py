"""The Hermes format, also Qwen's: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import re

from asyncopd.records import ToolCall
from asyncopd.text.parsers.call import Malformed, call_of, read_json, unreadable

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_AFTER_OBJECT = re.compile(rf"\s*(?:{re.escape(CLOSE)}|\Z)")
_BLOCK_END = re.compile(rf"{re.escape(CLOSE)}|(?={re.escape(OPEN)})|\Z")


def parse(text: str, turn: int) -> tuple[str, list[ToolCall]]:
    """Read calls anywhere in the text; one left open at its end counts if its JSON is whole."""
    content: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        content.append(text[position:start])
        call_id = f"call_{turn}_{len(calls)}"
        try:
            call, position = _read(text, start + len(OPEN), call_id)
        except Malformed as error:
            position = _end_of_block(text, start + len(OPEN))
            content.append(text[start:position])
            call = unreadable(call_id, error)
        calls.append(call)
    content.append(text[position:])
    return "".join(content).strip(), calls


def _read(text: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    value, end = read_json(text, start)
    after = _AFTER_OBJECT.match(text, end)
    if after is None:
        raise Malformed("text after the JSON")
    return call_of(value, call_id), after.end()


def _end_of_block(text: str, start: int) -> int:
    end = _BLOCK_END.search(text, start)
    assert end is not None, "the end of the text always matches"
    return end.end()
