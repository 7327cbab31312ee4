"""A family of problems: one statement, reference and source of inputs for each choice of its parameters."""

from __future__ import annotations

import itertools
import random
import string
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["easy", "medium", "hard"]

FUNCTION = "solve"


@dataclass(frozen=True)
class Draft:
    """One problem: what is asked, the signature after the name, a reference, and arguments drawn for a test."""

    statement: str
    signature: str
    source: str
    inputs: Callable[[random.Random], list[Any]]


@dataclass(frozen=True)
class Family:
    """All problems that `build` makes of the values in `choices`, one of each."""

    name: str
    level: Level
    choices: dict[str, Sequence[Any]]
    build: Callable[..., Draft]

    def parameters(self) -> Iterator[dict[str, Any]]:
        """Yield every choice of parameters, in a fixed order."""
        for values in itertools.product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))


FAMILIES: dict[str, Family] = {}


def family(level: Level, **choices: Sequence[Any]) -> Callable[[Callable[..., Draft]], Callable[..., Draft]]:
    """Make a function from parameters to a problem a family of that name."""

    def add(build: Callable[..., Draft]) -> Callable[..., Draft]:
        FAMILIES[build.__name__] = Family(build.__name__, level, choices, build)
        return build

    return add


def code(text: str, **values: str) -> str:
    """Return indented source as a module's, `$name` being replaced by lines at that indentation."""
    lines = []
    for line in textwrap.dedent(text).strip().split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        filled = string.Template(line).substitute(values)
        lines += [filled.replace("\n", f"\n{indent}")]
    return "\n".join(lines) + "\n"
