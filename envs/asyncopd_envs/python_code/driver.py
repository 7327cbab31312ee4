"""Runs in the sandbox, beside the code that is graded: calls it and tells what it returns, and knows no answer.

The first line of what it tells is whether the code could be loaded, then comes one for each call. Nothing that the
code could do to this program would help it: only right results count, and they are compared elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FILE = "submission.py"
FUNCTION = "solve"


def main() -> None:
    """Load the submission, then answer each line of arguments at standard input with a line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the code prints is no answer
    calls = sys.stdin.read().splitlines()
    namespace: dict[str, Any] = {"__name__": "submission"}
    fault = load(namespace)
    print(json.dumps({"fault": fault}), file=answers, flush=True)
    if fault is not None:
        return
    for call in calls:
        try:
            told = json.dumps({"result": namespace[FUNCTION](*json.loads(call))})
        except BaseException as error:  # noqa: BLE001 - the code may raise what it likes
            told = json.dumps({"raised": type(error).__name__})
        print(told, file=answers, flush=True)


def load(namespace: dict[str, Any]) -> str | None:
    """Run the submission's own statements; return what is wrong with it, if something is."""
    try:
        with open(FILE, encoding="utf-8") as file:
            program = compile(file.read(), FILE, "exec")
    except Exception:  # noqa: BLE001 - whatever it is, this is no Python
        return "unreadable"
    try:
        exec(program, namespace)
    except BaseException as error:  # noqa: BLE001 - the code may raise what it likes
        return f"raised {type(error).__name__}"
    return None if callable(namespace.get(FUNCTION)) else "missing"


main()
