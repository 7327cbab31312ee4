"""Reads tool calls in the Hermes format, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from asyncopd.records import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_AFTER_OBJECT = re.compile(rf"\s*(?:{re.escape(CLOSE)}|\Z)")
_BLOCK_END = re.compile(rf"{re.escape(CLOSE)}|(?={re.escape(OPEN)})|\Z")
_SPACE = re.compile(r"\s*")


class _Malformed(ValueError):
    """Why a text is no call, in a few words for the agent."""


def parse(text: str, turn: int = 0) -> tuple[str, list[ToolCall]]:
    """Split an assistant's text into its content and its tool calls.

    `text` has special tokens kept. A call left open at the end of the text counts if its JSON is whole.
    What cannot be read as a call becomes a `ToolCall` with `error` and stays in the content, verbatim.
    Ids are `call_TURN_INDEX`.
    """
    content: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        content.append(text[position:start])
        call_id = f"call_{turn}_{len(calls)}"
        try:
            call, position = _read(text, start + len(OPEN), call_id)
        except _Malformed as error:
            position = _end_of_block(text, start + len(OPEN))
            content.append(text[start:position])
            call = ToolCall(id=call_id, name="", arguments={}, error=str(error))
        calls.append(call)
    content.append(text[position:])
    return "".join(content).strip(), calls


def _read(text: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    try:
        value, end = _decoder.raw_decode(text, _skip_space(text, start))
    except RecursionError:
        raise _Malformed("nested too deeply") from None
    except ValueError:
        raise _Malformed("invalid JSON") from None
    after = _AFTER_OBJECT.match(text, end)
    if after is None:
        raise _Malformed("text after the JSON")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise _Malformed("no name")
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _Malformed("arguments are not an object")
    call = ToolCall(id=call_id, name=value["name"], arguments=arguments)
    try:
        msgspec.msgpack.encode(call)
    except (ValueError, OverflowError, RecursionError):  # lone surrogates, numbers beyond 64 bits, deep nesting
        raise _Malformed("values out of range") from None
    return call, after.end()


def _end_of_block(text: str, start: int) -> int:
    end = _BLOCK_END.search(text, start)
    assert end is not None, "the end of the text always matches"
    return end.end()


def _skip_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    assert space is not None, "no space matches too"
    return space.end()


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
