"""Plain JSON: an object of `name` and `arguments`, or a list of them, alone or in a fenced block."""

from __future__ import annotations

import re

from asyncopd.records import ToolCall
from asyncopd.text.parsers.call import Malformed, call_of, read_json, unreadable

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


def parse(text: str, turn: int) -> tuple[str, list[ToolCall]]:
    """Read the calls of the first fenced block, or of a text that is JSON and nothing else."""
    block = _FENCED.search(text)
    said = block.group(1) if block else text
    if not said.lstrip().startswith(("{", "[")):
        return text.strip(), []
    first = f"call_{turn}_0"
    try:
        value, end = read_json(said, 0)
        if said[end:].strip():
            raise Malformed("text after the JSON")
        values = value if isinstance(value, list) else [value]
        calls = [call_of(one, f"call_{turn}_{number}") for number, one in enumerate(values)]
    except Malformed as error:
        return text.strip(), [unreadable(first, error)]
    rest = text[: block.start()] + text[block.end() :] if block else ""
    return rest.strip(), calls
