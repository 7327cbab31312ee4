"""Questions in eight families, each with its price list, the calls that answer it, and the answer.

A family and its numbers are drawn first; a hash of the finished task then decides its split, so that no
task can be in both and no family is thinned by the filter.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

from asyncopd.records import Task
from asyncopd_envs.calculator.arithmetic import evaluate, written

ITEMS = ("lamp", "cup", "book", "pen", "chair", "hat", "coat", "bag", "ring", "toy", "desk", "clock")
PRICES = range(2, 50)
SPLITS = ("train", "test")
TEST_SHARE = 8  # one task in so many is held out
MAX_TRIES = 2000

Draft = tuple[str, list[dict[str, Any]]]
"""A question and its calls; `{0}` in an expression stands for the result of call 0."""


def _calc(expression: str) -> dict[str, Any]:
    return {"name": "calc", "arguments": {"expression": expression}}


def _price(item: str) -> dict[str, Any]:
    return {"name": "price", "arguments": {"item": item}}


def _number(rng: random.Random) -> int:
    return rng.randint(10, 99)


def _factor(rng: random.Random) -> int:
    return rng.randint(2, 9)


def expression(rng: random.Random) -> Draft:
    a, b, c, n = _number(rng), _number(rng), _number(rng), _factor(rng)
    text = rng.choice((f"{a}+{b}", f"{a + b}-{b}", f"{n}*{a}", f"{a}+{b}+{c}", f"{n}*{a}+{c}", f"{a + b}-{b}+{c}"))
    return rng.choice((f"What is {text}?", f"Compute {text}.")), [_calc(text)]


def brackets(rng: random.Random) -> Draft:
    a, b, c = _number(rng), _number(rng), _factor(rng)
    if rng.random() < 0.5:
        return f"Multiply the sum of {a} and {b} by {c}.", [_calc(f"({a}+{b})*{c}")]
    return f"Multiply {c} by the difference of {a + b} and {b}.", [_calc(f"{c}*({a + b}-{b})")]


def steps(rng: random.Random) -> Draft:
    a, b, n = _number(rng), _number(rng), _factor(rng)
    if rng.random() < 0.5:
        return f"Start with {a}, multiply by {n}, then add {b}.", [_calc(f"{a}*{n}"), _calc(f"{{0}}+{b}")]
    return f"Start with {a}, add {b}, then multiply by {n}.", [_calc(f"{a}+{b}"), _calc(f"{{0}}*{n}")]


def share(rng: random.Random) -> Draft:
    friends, item = rng.randint(2, 12), rng.choice(ITEMS)
    count = friends * _number(rng)
    return f"{friends} friends share {count} {item}s. How many does each get?", [_calc(f"{count}/{friends}")]


def price(rng: random.Random) -> Draft:
    item = rng.choice(ITEMS)
    question = rng.choice((f"What does a {item} cost?", f"How much is a {item}?", f"What is the price of a {item}?"))
    return question, [_price(item)]


def total(rng: random.Random) -> Draft:
    item, count = rng.choice(ITEMS), _factor(rng)
    question = rng.choice((f"What do {count} {item}s cost?", f"How much are {count} {item}s?"))
    return question, [_price(item), _calc(f"{count}*{{0}}")]


def both(rng: random.Random) -> Draft:
    first, second = rng.sample(ITEMS, 2)
    question = f"What do a {first} and a {second} cost?"
    return question, [_price(first), _price(second), _calc("{0}+{1}")]


def change(rng: random.Random) -> Draft:
    item, paid = rng.choice(ITEMS), rng.randint(PRICES.stop, 99)
    return f"I pay {paid} for a {item}. What is my change?", [_price(item), _calc(f"{paid}-{{0}}")]


FAMILIES: tuple[Callable[[random.Random], Draft], ...] = (
    expression,
    brackets,
    steps,
    share,
    price,
    total,
    both,
    change,
)


def make(family: Callable[[random.Random], Draft], rng: random.Random) -> Task:
    """Return one task of a family: `data` holds question, answer, prices and the worked calls with results."""
    question, calls = family(rng)
    prices = {item: rng.choice(PRICES) for item in ITEMS}
    results: list[str] = []
    worked = []
    for call in calls:
        arguments = {name: text.format(*results) for name, text in call["arguments"].items()}
        result = (
            str(prices[arguments["item"]]) if call["name"] == "price" else written(evaluate(arguments["expression"]))
        )
        results.append(result)
        worked.append({"name": call["name"], "arguments": arguments, "form": call["arguments"], "result": result})
    key = hashlib.sha256("\n".join([question, *results]).encode()).hexdigest()
    data = {"question": question, "answer": results[-1], "prices": prices, "calls": worked}
    return Task(id=f"{family.__name__}-{key[:12]}", domain=family.__name__, data=data)


def split_of(task: Task) -> str:
    """Return the split a task belongs to, by the hash in its id."""
    return "test" if int(task.id.rpartition("-")[2], 16) % TEST_SHARE == 0 else "train"


def generate(split: str, count: int) -> list[Task]:
    """Return the first `count` tasks of a split, families in turn, ids unique; a longer list begins with a shorter.

    Raises `ValueError` if the split is unknown, or a family has too few different tasks.
    """
    if split not in SPLITS:
        raise ValueError(f"the calculator has no split {split!r}; it has {' and '.join(SPLITS)}")
    rng = random.Random(f"calculator {split}")
    tasks: dict[str, Task] = {}
    for index in range(count):
        family = FAMILIES[index % len(FAMILIES)]
        for _ in range(MAX_TRIES):
            task = make(family, rng)
            if split_of(task) == split and task.id not in tasks:
                tasks[task.id] = task
                break
        else:
            raise ValueError(
                f"{split}_tasks: {count} is more than the family {family.__name__!r} can give; ask for less"
            )
    return list(tasks.values())
