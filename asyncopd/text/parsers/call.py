"""One tool call read from what a model wrote, whatever the format around it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from asyncopd.records import ToolCall

_SPACE = re.compile(r"\s*")


class Malformed(ValueError):
    """Why a text is no call, in a few words for the agent."""


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, after any space, and where it ends. Raises `Malformed`."""
    space = _SPACE.match(text, start)
    assert space is not None, "no space matches too"
    try:
        return _decoder.raw_decode(text, space.end())
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except ValueError:
        raise Malformed("invalid JSON") from None


def call_of(value: Any, call_id: str, arguments_key: str = "arguments") -> ToolCall:
    """Return the call that an object of `name` and `arguments_key` stands for. Raises `Malformed`."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise Malformed("no name")
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        raise Malformed(f"{arguments_key} are not an object")
    call = ToolCall(id=call_id, name=value["name"], arguments=arguments)
    try:
        msgspec.msgpack.encode(call)
    except (ValueError, OverflowError, RecursionError, TypeError):
        # Lone surrogates, numbers beyond 64 bits, deep nesting, keys that are no text.
        raise Malformed("values out of range") from None
    return call


def unreadable(call_id: str, error: Malformed) -> ToolCall:
    """Return the call that says why it could not be read."""
    return ToolCall(id=call_id, name="", arguments={}, error=str(error))


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
