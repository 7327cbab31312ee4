"""Dictionaries and small formats: grouping, pairs, brackets."""

from __future__ import annotations

import random
from typing import Any

from asyncopd_envs.python_code.families.text import sentence
from asyncopd_envs.python_code.family import Draft, code, family

_KEYS = {
    "first letter": "word[0].lower()",
    "last letter": "word[-1].lower()",
    "length, written as a string": "str(len(word))",
    "number of vowels, written as a string": 'str(sum(c in "aeiou" for c in word.lower()))',
}
_VALUES = {
    "how many words there are": "len(words)",
    "the words in lower case, sorted, each once": "sorted({word.lower() for word in words})",
    "the number of their letters together": "sum(map(len, words))",
    "the first of them": "words[0]",
}


@family("medium", key=tuple(_KEYS), value=tuple(_VALUES), least=range(1, 4))
def group_words(key: str, value: str, least: int) -> Draft:
    some = "" if least == 1 else f" Leave out groups of fewer than {least} words."
    lower = " (letters count in lower case)" if "letter" in key else ""
    return Draft(
        statement=f"Group the words of `text`, which single spaces separate, by their {key}{lower}. Return a "
        f"dictionary from that to {value}; words count as often as they occur.{some}",
        signature="(text: str) -> dict",
        source=code(
            """
            def solve(text):
                groups = {}
                for word in text.split():
                    groups.setdefault($key, []).append(word)
                return {key: $value for key, words in groups.items() if len(words) >= $least}
            """,
            key=_KEYS[key],
            value=_VALUES[value],
            least=str(least),
        ),
        inputs=sentence,
    )


_REPEATED = {
    "the first value": "pairs.setdefault(name, value)",
    "the last value": "pairs[name] = value",
    "the sum of the values": "pairs[name] = pairs.get(name, 0) + value",
    "the greatest value": "pairs[name] = max(value, pairs.get(name, value))",
}
_SPACES = ("", " ")


@family("medium", between=(";", ",", "|", "&"), equals=("=", ":", "->"), repeated=tuple(_REPEATED), total=(True, False))
def parse_pairs(between: str, equals: str, repeated: str, total: bool) -> Draft:
    wanted = "the sum of what the dictionary holds" if total else "the dictionary"

    def inputs(rng: random.Random) -> list[Any]:
        pairs = []
        for _ in range(rng.randint(0, 7)):
            space = rng.choice(_SPACES)
            pairs.append(rng.choice(("", *[f"{rng.choice('abcd')}{space}{equals}{space}{rng.randint(-9, 30)}"] * 6)))
        return [between.join(pairs)]

    return Draft(
        statement=f"`text` holds pairs like `a{equals}5`, separated by {between!r}. There may be spaces around names "
        f"and integers, and empty pieces, which do not count. Read them into a dictionary from name to integer; for a "
        f"name that is repeated it holds {repeated}. Return {wanted}.",
        signature=f"(text: str) -> {'int' if total else 'dict[str, int]'}",
        source=code(
            """
            def solve(text):
                pairs = {}
                for piece in text.split($between):
                    if not piece.strip():
                        continue
                    name, _, number = piece.partition($equals)
                    name, value = name.strip(), int(number)
                    $repeated
                return $wanted
            """,
            between=repr(between),
            equals=repr(equals),
            repeated=_REPEATED[repeated],
            wanted="sum(pairs.values())" if total else "pairs",
        ),
        inputs=inputs,
    )


_BRACKETS = ("()", "[]", "{}", "<>")
_ANSWERS = {
    "whether all brackets are matched and properly nested": ("return False", "return not stack"),
    "the index of the first bracket that closes none or the wrong one, or of the first that is never closed, or -1": (
        "return index",
        "return stack[0][1] if stack else -1",
    ),
    "the greatest depth of nesting, or -1 if they are not all matched and properly nested": (
        "return -1",
        "return -1 if stack else deepest",
    ),
}


@family("hard", kinds=((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 1, 2), (1, 2, 3)), answer=tuple(_ANSWERS))
def brackets(kinds: tuple[int, ...], answer: str) -> Draft:
    pairs = [_BRACKETS[kind] for kind in kinds]
    others = [pair for pair in _BRACKETS if pair not in pairs]

    def inputs(rng: random.Random) -> list[Any]:
        def nested(depth: int) -> str:
            pair = rng.choice(pairs)
            inner = "".join(nested(depth - 1) for _ in range(rng.randint(0, 2))) if depth else rng.choice(("x", ""))
            return f"{pair[0]}{inner}{pair[1]}"

        text = [*"".join(nested(rng.randint(0, 3)) for _ in range(rng.randint(0, 3)))]
        for _ in range(rng.choice((0, 0, 1, 2))):
            text.insert(rng.randint(0, len(text)), rng.choice("".join(pairs)))
        text.insert(rng.randint(0, len(text)), rng.choice("".join(others)))
        return ["".join(text)]

    wrong, end = _ANSWERS[answer]
    return Draft(
        statement=f"In `text` only {' '.join(pairs)} are brackets; all other characters are ignored. Return {answer}.",
        signature=f"(text: str) -> {'bool' if answer.startswith('whether') else 'int'}",
        source=code(
            """
            def solve(text):
                pairs = $pairs
                stack, deepest = [], 0
                for index, c in enumerate(text):
                    if c in pairs.values():
                        stack.append((c, index))
                        deepest = max(deepest, len(stack))
                    elif c in pairs:
                        if not stack or stack.pop()[0] != pairs[c]:
                            $wrong
                $end
            """,
            pairs=repr({pair[1]: pair[0] for pair in pairs}),
            wrong=wrong,
            end=end,
        ),
        inputs=inputs,
    )
