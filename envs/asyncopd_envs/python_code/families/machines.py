"""Simulations: stack machines, robots, queues, automata."""

from __future__ import annotations

import random
from typing import Any

from asyncopd_envs.python_code.family import Draft, code, family

_EXTRA = {
    "the greater of both": "max(a, b)",
    "the less of both": "min(a, b)",
    "`2 * a - b`": "2 * a - b",
    "`a * a + b`": "a * a + b",
    "how far they are apart": "abs(a - b)",
}


@family("hard", extra=tuple(_EXTRA), modulus=(97, 101, 256, 1000, 7919), order=("postfix", "prefix"))
def stack_machine(extra: str, modulus: int, order: str) -> Draft:
    postfix = order == "postfix"

    def inputs(rng: random.Random) -> list[Any]:
        def made(depth: int) -> list[str]:
            if depth == 0 or rng.random() < 0.2:
                return [str(rng.randint(0, 60))]
            operator, left, right = rng.choice("+-*@"), made(depth - 1), made(depth - 1)
            return [*left, *right, operator] if postfix else [operator, *left, *right]

        return [" ".join(made(rng.randint(0, 3)))]

    return Draft(
        statement=f"Evaluate `text`, an expression in {order} notation: tokens separated by single spaces, integers or "
        f"the operators `+`, `-`, `*` and `@`, where a `@` b, a standing first in the text, is {extra}. Take every "
        f"operator's result modulo {modulus}, as Python's `%` does; numbers are taken as they are.",
        signature="(text: str) -> int",
        source=code(
            """
            def solve(text):
                stack = []
                for token in $tokens:
                    if token not in ("+", "-", "*", "@"):
                        stack.append(int(token))
                        continue
                    $pops
                    value = {"+": a + b, "-": a - b, "*": a * b, "@": $extra}[token]
                    stack.append(value % $modulus)
                return stack[0]
            """,
            tokens="text.split()" if postfix else "reversed(text.split())",
            pops="b, a = stack.pop(), stack.pop()" if postfix else "a, b = stack.pop(), stack.pop()",
            extra=_EXTRA[extra],
            modulus=str(modulus),
        ),
        inputs=inputs,
    )


_FACING = ("north", "east", "south", "west")
_REPORTS = {
    "its last position, as a list `[x, y]`": "[x, y]",
    "how many different cells it was in, the first and last ones included": "len(seen)",
    "how many times a step led it to a cell where it had been before": "again",
}


@family("hard", size=range(4, 9), edge=("wraps", "stops"), facing=range(4), report=tuple(_REPORTS))
def robot(size: int, edge: str, facing: int, report: str) -> Draft:
    rule = (
        "A step over an edge leads to the opposite one."
        if edge == "wraps"
        else "A step over an edge does not happen and is no step."
    )
    moved = f"nx, ny = nx % {size}, ny % {size}"
    blocked = f"if not (0 <= nx < {size} and 0 <= ny < {size}):\n    continue"
    return Draft(
        statement=f"A robot stands at x = 0, y = 0 of a grid of {size} by {size} cells (0 to {size - 1}) and faces "
        f"{_FACING[facing]}. North is y + 1, east is x + 1. Each character of `moves` is L or R, a quarter turn to the "
        f"left or right, or F, a step ahead. {rule} Return {report}.",
        signature=f"(moves: str) -> {'list[int]' if 'list' in report else 'int'}",
        source=code(
            """
            def solve(moves):
                x, y, facing = 0, 0, $facing
                seen, again = {(0, 0)}, 0
                for move in moves:
                    if move != "F":
                        facing = (facing + (1 if move == "R" else -1)) % 4
                        continue
                    dx, dy = [(0, 1), (1, 0), (0, -1), (-1, 0)][facing]
                    nx, ny = x + dx, y + dy
                    $edge
                    x, y = nx, ny
                    again += (x, y) in seen
                    seen.add((x, y))
                return $report
            """,
            facing=str(facing),
            edge=moved if edge == "wraps" else blocked,
            report=_REPORTS[report],
        ),
        inputs=lambda rng: ["".join(rng.choices("FFFLR", k=rng.randint(0, 30)))],
    )


_WAITS = {
    "the sum of the waits of those who were served": "sum(waits)",
    "the longest wait of one who was served, or 0": "max(waits, default=0)",
    "when the last one served was done, or 0": "done",
    "how many left without being served": "left",
}


def _customers(rng: random.Random) -> list[Any]:
    moments = sorted(rng.randint(0, 15) for _ in range(rng.randint(0, 12)))
    return [[[moment, rng.randint(1, 9)] for moment in moments]]


@family("hard", counters=range(1, 3), patience=(2, 3, 4, 5, 6, 8), report=tuple(_WAITS))
def queue(counters: int, patience: int, report: str) -> Draft:
    desks = "one counter" if counters == 1 else f"{counters} counters"
    return Draft(
        statement=f"`customers` holds lists `[arrival, minutes]` in order of arrival. There are {desks}; each customer "
        f"in turn is served at the counter that is free first, from when it is free and the customer there, for so "
        f"many minutes. One who would have to wait more than {patience} minutes leaves at once. Return {report}.",
        signature="(customers: list[list[int]]) -> int",
        source=code(
            """
            def solve(customers):
                free = [0] * $counters
                waits, done, left = [], 0, 0
                for arrival, minutes in customers:
                    free.sort()
                    wait = max(0, free[0] - arrival)
                    if wait > $patience:
                        left += 1
                        continue
                    waits.append(wait)
                    free[0] = arrival + wait + minutes
                    done = max(done, free[0])
                return $report
            """,
            counters=str(counters),
            patience=str(patience),
            report=_WAITS[report],
        ),
        inputs=_customers,
    )


@family("hard", rule=(18, 22, 30, 45, 54, 60, 73, 90, 105, 110, 126, 150), steps=range(1, 5), edge=("ring", "zeros"))
def automaton(rule: int, steps: int, edge: str) -> Draft:
    around = "The row is a ring." if edge == "ring" else "Beyond both ends all cells are 0."
    return Draft(
        statement=f"`cells` is a row of 0s and 1s. In one step each cell becomes bit number 4·left + 2·itself + right "
        f"(bit 0 is the least significant) of the number {rule}, from its neighbours and itself before the step. "
        f"{around} Return the row after {steps} {'step' if steps == 1 else 'steps'}.",
        signature="(cells: list[int]) -> list[int]",
        source=code(
            """
            def solve(cells):
                for _ in range($steps):
                    around = $around
                    cells = [
                        ($rule >> (4 * around[i] + 2 * around[i + 1] + around[i + 2])) & 1
                        for i in range(len(cells))
                    ]
                return cells
            """,
            steps=str(steps),
            around="[cells[-1], *cells, cells[0]]" if edge == "ring" else "[0, *cells, 0]",
            rule=str(rule),
        ),
        inputs=lambda rng: [[rng.randint(0, 1) for _ in range(rng.randint(3, 14))]],
    )
