"""A problem with its examples and hidden tests, all made again from a task's family and parameters."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

from asyncopd_envs.python_code.families import FAMILIES
from asyncopd_envs.python_code.family import FUNCTION, Draft

_DRAWN = 8  # inputs for each test that is kept, so that results differ as much as they can


@dataclass(frozen=True)
class Case:
    """Arguments, and what the reference returns for them; both of JSON types."""

    arguments: list[Any]
    expected: Any

    def __str__(self) -> str:
        return f"{FUNCTION}({', '.join(map(repr, self.arguments))}) == {self.expected!r}"


@dataclass(frozen=True)
class Problem:
    """What is asked, what may be seen of the answers, and what may not. No case is both shown and hidden."""

    draft: Draft
    examples: list[Case]
    hidden: list[Case]

    @property
    def question(self) -> str:
        """The problem in words, with its examples."""
        shown = "".join(f"\n{case}" for case in self.examples)
        asked = f"Write a Python function `{FUNCTION}{self.draft.signature}`. {self.draft.statement}"
        return f"{asked}\n\nExamples:{shown}" if shown else asked


def problem(family: str, parameters: dict[str, Any], examples: int, hidden: int) -> Problem:
    """Return the problem of a family with some parameters, the same at each call."""
    draft = FAMILIES[family].build(**parameters)
    cases = _cases(draft, f"{family} {json.dumps(parameters)}", examples + hidden)
    return Problem(draft, cases[:examples], cases[examples:])


def _cases(draft: Draft, key: str, count: int) -> list[Case]:
    """Return cases with different arguments, and with results as different as can be."""
    namespace: dict[str, Any] = {}
    exec(draft.source, namespace)  # of this package, and no one else's
    rng = random.Random(key)
    drawn = {json.dumps(arguments): arguments for arguments in (draft.inputs(rng) for _ in range(_DRAWN * count))}
    by_result: dict[str, list[Case]] = {}
    for arguments in drawn.values():
        result = namespace[FUNCTION](*copy.deepcopy(arguments))
        by_result.setdefault(json.dumps(result), []).append(Case(arguments, result))
    cases: list[Case] = []
    while len(cases) < count:
        kinds = [kind for kind in by_result.values() if kind]
        assert kinds, f"{key}: too few inputs differ"
        rng.shuffle(kinds)
        cases += [kind.pop() for kind in kinds[: count - len(cases)]]
    return cases
