"""Grades code by hidden tests, out of its reach: it gets their arguments, and its results are judged here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncopd.sandbox import Limits, Result, Sandbox
from asyncopd_envs.python_code.problem import Case

_DRIVER = Path(__file__).with_name("driver.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Grade:
    """How many of the tests passed. `readable`: it is Python and defines the function; `ended`: see `Result`."""

    passed: int
    tests: int
    readable: bool
    ended: str


async def grade(code: str, tests: Sequence[Case], limits: Limits) -> Grade:
    """Run `code` on the arguments of all tests, in a sandbox of its own. Raises `SandboxError`."""
    calls = "".join(f"{json.dumps(test.arguments)}\n" for test in tests)
    async with Sandbox(limits) as box:
        result = await box.run(_DRIVER, stdin=calls, files={"submission.py": code})
    told = list(_told(result))
    readable = not told or told[0].get("fault") not in ("missing", "unreadable")
    passed = sum(_passes(answer, test) for answer, test in zip(told[1:], tests, strict=False))
    return Grade(passed, len(tests), readable, result.ended)


def _told(result: Result) -> list[dict[str, Any]]:
    """Return the lines that can be read, up to the first that cannot."""
    lines = []
    for line in result.stdout.splitlines():
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(answer, dict):
            break
        lines.append(answer)
    return lines


def _passes(answer: dict[str, Any], test: Case) -> bool:
    """Return whether a result is the expected one, and of its type: 1 is neither True nor 1.0."""
    return "result" in answer and json.dumps(answer["result"], sort_keys=True) == json.dumps(
        test.expected, sort_keys=True
    )
