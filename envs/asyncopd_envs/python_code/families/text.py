"""Strings: picking, rotating, shifting, compressing."""

from __future__ import annotations

import random
import string
from typing import Any

from asyncopd_envs.python_code.family import Draft, code, family

LETTERS = string.ascii_letters + string.digits + " .,-"
WORDS = ("red", "apple", "Sun", "of", "tree", "it", "Moon", "garden", "a", "blue", "night", "Egg", "stone", "up", "Ivy")

_KEPT = {
    "vowels": 'c in "aeiouAEIOU"',
    "consonants": 'c.isalpha() and c not in "aeiouAEIOU"',
    "digits": "c.isdigit()",
    "upper-case letters": "c.isupper()",
}
_CHANGED = {
    "in the order of the text": "kept",
    "from last to first": "kept[::-1]",
    "sorted by their character codes": "sorted(kept)",
    "each only once, where it first appears": "list(dict.fromkeys(kept))",
    "each twice in a row": "[c for c in kept for _ in range(2)]",
}


def characters(rng: random.Random) -> list[Any]:
    """Return a text of letters, digits and some others."""
    return ["".join(rng.choices(LETTERS, k=rng.randint(0, 24)))]


def sentence(rng: random.Random) -> list[Any]:
    """Return words with one space between them; there may be none."""
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, 12)))]


@family("easy", kept=tuple(_KEPT), changed=tuple(_CHANGED), between=("", "-", "/"))
def pick_characters(kept: str, changed: str, between: str) -> Draft:
    joined = f"joined by {between!r}" if between else "with nothing between them"
    return Draft(
        statement=f"Return the {kept} of `text`, {changed}, {joined}. All letters are ASCII.",
        signature="(text: str) -> str",
        source=code(
            """
            def solve(text):
                kept = [c for c in text if $condition]
                return $between.join($changed)
            """,
            condition=_KEPT[kept],
            changed=_CHANGED[changed],
            between=repr(between),
        ),
        inputs=characters,
    )


@family("easy", places=range(1, 7), direction=("left", "right"), case=("as it is", "upper", "lower", "title"))
def rotate_words(places: int, direction: str, case: str) -> Draft:
    written = "as they are" if case == "as it is" else f"in {case} case (as by `str.{case}`)"
    return Draft(
        statement=f"Rotate the words of `text`, which single spaces separate, {places} places to the {direction}, "
        f"around the end, and return them {written}, separated by single spaces. A text without words stays empty.",
        signature="(text: str) -> str",
        source=code(
            """
            def solve(text):
                words = text.split()
                if not words:
                    return ""
                start = $places % len(words)
                rotated = words[start:] + words[:start]
                return " ".join(rotated)$case
            """,
            places=str(places if direction == "left" else -places),
            case="" if case == "as it is" else f".{case}()",
        ),
        inputs=sentence,
    )


@family("medium", shift=range(1, 13), where=("every", "even", "odd"), digits=(True, False))
def shift_letters(shift: int, where: str, digits: bool) -> Draft:
    place = "at every index" if where == "every" else f"at {where} indices (from 0)"
    numbers = f" Digits move {shift} places in 0123456789 likewise." if digits else ""
    condition = {"every": "True", "even": "index % 2 == 0", "odd": "index % 2 == 1"}[where]
    kinds = '("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"' + (', "0123456789")' if digits else ")")
    return Draft(
        statement=f"Move each ASCII letter of `text` {place} {shift} places on in the alphabet, around its end, and "
        f"keep its case.{numbers} Leave all else as it is.",
        signature="(text: str) -> str",
        source=code(
            """
            def solve(text):
                moved = []
                for index, c in enumerate(text):
                    for alphabet in $kinds:
                        if $condition and c in alphabet:
                            c = alphabet[(alphabet.index(c) + $shift) % len(alphabet)]
                            break
                    moved.append(c)
                return "".join(moved)
            """,
            kinds=kinds,
            condition=condition,
            shift=str(shift),
        ),
        inputs=characters,
    )


@family(
    "medium", least=range(2, 5), form=("count first", "character first"), between=("", ",", ";"), stars=(True, False)
)
def compress_runs(least: int, form: str, between: str, stars: bool) -> Draft:
    mark = "*" if stars else ""
    example = f"4{mark}a" if form == "count first" else f"a{mark}4"
    piece = f'f"{{size}}{mark}{{c}}"' if form == "count first" else f'f"{{c}}{mark}{{size}}"'
    joined = f"Join the pieces by {between!r}." if between else "Put nothing between the pieces."
    return Draft(
        statement=f"Split `text` into its longest runs of one character. Write a run of {least} or more like "
        f"`{example}`, which stands for `aaaa`, and a shorter one as it is. {joined}",
        signature="(text: str) -> str",
        source=code(
            """
            from itertools import groupby

            def solve(text):
                pieces = []
                for c, run in groupby(text):
                    size = len(list(run))
                    pieces.append($piece if size >= $least else c * size)
                return $between.join(pieces)
            """,
            piece=piece,
            least=str(least),
            between=repr(between),
        ),
        inputs=lambda rng: ["".join(rng.choice("abc") * rng.randint(1, 6) for _ in range(rng.randint(0, 6)))],
    )
