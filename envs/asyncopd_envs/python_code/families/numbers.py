"""Numbers and lists of them: filters, digits, windows, intervals."""

from __future__ import annotations

import random
from typing import Any

from asyncopd_envs.python_code.family import Draft, code, family

_KEPT = {
    "are multiples of {k}": "n % {k} == 0",
    "are greater than {k}": "n > {k}",
    "leave remainder 1 divided by {k}": "n % {k} == 1",
}
_RESULTS = {
    "their sum": "sum(kept)",
    "how many there are": "len(kept)",
    "the greatest of them, or -1 if there is none": "max(kept, default=-1)",
    "a list of them from greatest to least": "sorted(kept, reverse=True)",
}


def integers(rng: random.Random) -> list[Any]:
    """Return a list of integers from -20 to 40; it may be empty."""
    return [[rng.randint(-20, 40) for _ in range(rng.randint(0, 12))]]


@family("easy", k=range(2, 10), kept=tuple(_KEPT), result=tuple(_RESULTS))
def filter_numbers(k: int, kept: str, result: str) -> Draft:
    return Draft(
        statement=f"Of the integers in `numbers`, take those that {kept.format(k=k)} (as by Python's operators), and "
        f"return {result}.",
        signature=f"(numbers: list[int]) -> {'list[int]' if 'list' in result else 'int'}",
        source=code(
            """
            def solve(numbers):
                kept = [n for n in numbers if $condition]
                return $result
            """,
            condition=_KEPT[kept].format(k=k),
            result=_RESULTS[result],
        ),
        inputs=integers,
    )


_DIGITS = {
    "the sum of those that are even": "sum(d for d in digits if d % 2 == 0)",
    "the product of those that are not 0": "prod(d for d in digits if d)",
    "the greatest less the least": "max(digits) - min(digits)",
    "how many different ones there are": "len(set(digits))",
    "how often the last one occurs": "digits.count(digits[0])",
}


@family("medium", base=range(3, 13), result=tuple(_DIGITS))
def digits_in_base(base: int, result: str) -> Draft:
    return Draft(
        statement=f"Write `number`, which is not negative, in base {base}, without leading zeros (0 is one digit). Of "
        f"the values of its digits, return {result}, as an integer.",
        signature="(number: int) -> int",
        source=code(
            """
            from math import prod

            def solve(number):
                digits = []
                while True:
                    number, digit = divmod(number, $base)
                    digits.append(digit)
                    if number == 0:
                        break
                return $result
            """,
            base=str(base),
            result=_DIGITS[result],
        ),
        inputs=lambda rng: [rng.choice((rng.randint(0, 20), rng.randint(0, 10**5), rng.randint(0, 10**9)))],
    )


_STATISTICS = {
    "its greatest number": "max(window)",
    "its sum": "sum(window)",
    "its greatest number less its least": "max(window) - min(window)",
    "its first number times its last": "window[0] * window[-1]",
}


@family("medium", size=range(2, 6), step=range(1, 4), statistic=tuple(_STATISTICS))
def windows(size: int, step: int, statistic: str) -> Draft:
    return Draft(
        statement=f"Look at the windows of {size} neighbours in `numbers`: the first begins at index 0, each next one "
        f"{step} further on, and only whole ones count. Return a list with, for each window, {statistic}.",
        signature="(numbers: list[int]) -> list[int]",
        source=code(
            """
            def solve(numbers):
                results = []
                for start in range(0, len(numbers) - $size + 1, $step):
                    window = numbers[start:start + $size]
                    results.append($statistic)
                return results
            """,
            size=str(size),
            step=str(step),
            statistic=_STATISTICS[statistic],
        ),
        inputs=integers,
    )


_MERGED = {
    "the merged intervals, as lists `[start, end]` in order": "merged",
    "how many intervals there are after merging": "len(merged)",
    "the total length of the merged intervals, each `end - start`": "sum(end - start for start, end in merged)",
    "the length of the longest merged interval, or 0": "max((end - start for start, end in merged), default=0)",
}


def _intervals(rng: random.Random) -> list[Any]:
    starts = [rng.randint(0, 50) for _ in range(rng.randint(0, 7))]
    return [[[start, start + rng.randint(0, 9)] for start in starts]]


@family("hard", gap=range(0, 8), result=tuple(_MERGED))
def merge_intervals(gap: int, result: str) -> Draft:
    return Draft(
        statement="`intervals` holds lists `[start, end]` of integers, in any order. Merge two of them where the one "
        f"that starts later starts at most {gap} after the other's end (so also where they overlap), until none are "
        f"left to merge. Return {result}.",
        signature=f"(intervals: list[list[int]]) -> {'list[list[int]]' if 'lists' in result else 'int'}",
        source=code(
            """
            def solve(intervals):
                merged = []
                for start, end in sorted(intervals):
                    if merged and start - merged[-1][1] <= $gap:
                        merged[-1][1] = max(merged[-1][1], end)
                    else:
                        merged.append([start, end])
                return $result
            """,
            gap=str(gap),
            result=_MERGED[result],
        ),
        inputs=_intervals,
    )
