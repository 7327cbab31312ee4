"""The pythonic format of Llama 4 and others: `[search(query="x", k=3), now()]`."""

from __future__ import annotations

import ast
import json

from asyncopd.records import ToolCall
from asyncopd.text.parsers.call import Malformed, call_of, unreadable

TAG = "<|python_start|>"
END = "<|python_end|>"


def parse(text: str, turn: int) -> tuple[str, list[ToolCall]]:
    """Read a text that is a list of calls with named literal arguments, and nothing else."""
    said = text.strip().removeprefix(TAG).removesuffix(END).strip()
    if not said.startswith("["):
        return text.strip(), []
    try:
        nodes = _elements(said)
        if nodes and not any(isinstance(node, ast.Call) for node in nodes):
            return text.strip(), []  # a list, but of no calls
        calls = [call_of(_value(node), f"call_{turn}_{number}") for number, node in enumerate(nodes)]
    except Malformed as error:
        return text.strip(), [unreadable(f"call_{turn}_0", error)]
    return "", calls


def _elements(said: str) -> list[ast.expr]:
    try:
        tree = ast.parse(said, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed("not a list of calls") from None
    if not isinstance(tree.body, ast.List):
        raise Malformed("not a list of calls")
    return tree.body.elts


def _value(node: ast.expr) -> dict[str, object]:
    if not isinstance(node, ast.Call):
        raise Malformed("not a list of calls")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise Malformed("arguments without a name")
    try:
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        as_json = json.loads(json.dumps(arguments, allow_nan=False))  # what the call is stored and shown as
    except (ValueError, TypeError, RecursionError):
        raise Malformed("arguments are no JSON literals") from None
    return {"name": ast.unparse(node.func), "arguments": as_json}
