"""Llama 3's JSON format: `<|python_tag|>{"name": …, "parameters": {…}}`, several with `;` between them."""

from __future__ import annotations

import re

from asyncopd.records import ToolCall
from asyncopd.text.parsers.call import Malformed, call_of, read_json, unreadable

TAG = "<|python_tag|>"
_NEXT = re.compile(r"\s*(?:;\s*|\Z)")


def parse(text: str, turn: int) -> tuple[str, list[ToolCall]]:
    """Read the calls after the tag, or of a text that is nothing but calls."""
    content, tag, said = text.partition(TAG)
    if not tag:
        content, said = "", text
        if not said.lstrip().startswith("{"):
            return text.strip(), []
    calls: list[ToolCall] = []
    position = 0
    while position < len(said.rstrip()):
        call_id = f"call_{turn}_{len(calls)}"
        try:
            value, end = read_json(said, position)
            after = _NEXT.match(said, end)
            if after is None:
                raise Malformed("text after the JSON")
            calls.append(call_of(value, call_id, "arguments" if "arguments" in value else "parameters"))
        except (Malformed, TypeError) as error:
            calls.append(unreadable(call_id, error if isinstance(error, Malformed) else Malformed("no name")))
            return f"{content}{said[position:]}".strip(), calls
        position = after.end()
    return content.strip(), calls
