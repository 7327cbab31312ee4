"""How tool calls are read from what a model wrote.

A parser takes an assistant's text, special tokens kept, and the index of its turn; it returns the content without
the calls, and the calls, whose ids are `call_TURN_INDEX`. What cannot be read as a call becomes a `ToolCall` with
`error` and stays in the content, verbatim. No text makes a parser raise, and every call can be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from asyncopd.records import ToolCall
from asyncopd.text.parsers import hermes, llama3_json, plain_json, pythonic, react

Parser = Callable[[str, int], tuple[str, list[ToolCall]]]

PARSERS: Mapping[str, Parser] = {
    "hermes": hermes.parse,
    "llama3_json": llama3_json.parse,
    "pythonic": pythonic.parse,
    "json": plain_json.parse,
    "react": react.parse,
}
