"""The ReAct format: lines `Action: name` and `Action Input: {…}`, an answer after `Final Answer:`."""

from __future__ import annotations

import re

from asyncopd.records import ToolCall
from asyncopd.text.parsers.call import Malformed, call_of, read_json, unreadable

_ACTION = re.compile(r"^[ \t]*Action:[ \t]*(?P<name>[^\n]*)\n[ \t]*Action Input:[ \t]*", re.MULTILINE)
_ACTION_LINE = re.compile(r"^[ \t]*Action:", re.MULTILINE)
_ANSWER = re.compile(r"^[ \t]*Final Answer:[ \t]*", re.MULTILINE)


def parse(text: str, turn: int) -> tuple[str, list[ToolCall]]:
    """Read the first action; what a model goes on to write after its input, observations among it, is no call."""
    answer = _ANSWER.search(text)
    line = _ACTION_LINE.search(text)
    if line is None or (answer is not None and answer.start() < line.start()):
        return text[answer.end() if answer else 0 :].strip(), []
    call_id = f"call_{turn}_0"
    action = _ACTION.match(text, line.start())
    try:
        if action is None:
            raise Malformed("no Action Input")
        value, _ = read_json(text, action.end())
        call = call_of({"name": action["name"].strip(), "arguments": value}, call_id)
    except Malformed as error:
        return text.strip(), [unreadable(call_id, error)]
    return text[: line.start()].strip(), [call]
