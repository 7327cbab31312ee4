"""Rewards as methods, several of them, weighted, of a turn or of the whole episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__asyncopd_reward__"


class Unjudged(Exception):
    """A reward cannot be had now; the attempt teaches nothing, whatever the agent did."""


@dataclass(frozen=True)
class Reward:
    """A method that rewards: its name in reports, its weight, and what it is asked about."""

    name: str
    weight: float
    per: Literal["episode", "turn"]


def reward(
    function: Function | None = None, *, weight: float = 1.0, per: Literal["episode", "turn"] = "episode"
) -> Any:
    """Make a method a reward, as `@reward` or `@reward(weight=0.1, per="turn")`.

    One of the episode takes no argument and is asked when it has ended; one of a turn takes the assistant's message
    and the results of its calls. It returns a number, True or False; its product with `weight` counts. One that
    cannot judge raises `Unjudged`: the attempt is then tried again or teaches nothing, and never counts as 0.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, _MARK, Reward(marked.__name__, weight, per))
        return marked

    return mark if function is None else mark(function)


def rewards_of(kind: type, per: Literal["episode", "turn"]) -> list[tuple[Reward, str]]:
    """Return the rewards of a class that are asked about `per`, base classes' first, each with its attribute."""
    found = []
    for attribute in dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base)):
        method = inspect.getattr_static(kind, attribute)
        mark = vars(method).get(_MARK) if inspect.isfunction(method) else None
        if mark is not None and mark.per == per:
            found.append((mark, attribute))
    return found
