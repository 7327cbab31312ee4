"""The calculator's arithmetic is exact, and refuses everything outside its grammar."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd_envs.calculator.arithmetic import MAX_VALUE, ArithmeticFault, evaluate, written

numbers = st.integers(0, 99).map(lambda number: (str(number), Fraction(number)))


def joined(children: st.SearchStrategy[tuple[str, Fraction]]) -> st.SearchStrategy[tuple[str, Fraction]]:
    def join(operator: str, left: tuple[str, Fraction], right: tuple[str, Fraction]) -> tuple[str, Fraction]:
        value = left[1] + right[1] if operator == "+" else left[1] - right[1] if operator == "-" else left[1] * right[1]
        return f"({left[0]}{operator}{right[0]})", value

    return st.builds(join, st.sampled_from("+-*"), children, children)


@given(st.recursive(numbers, joined, max_leaves=6))
def test_values_are_exact(case: tuple[str, Fraction]) -> None:
    text, value = case
    if abs(value) <= MAX_VALUE and len(text) <= 80:
        try:
            assert evaluate(text) == value
        except ArithmeticFault as fault:
            assert str(fault) == "out of bounds"  # of an intermediate value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12+34*2", "80"),
        ("(12+34)*2", "92"),
        (" 7 - 10 ", "-3"),
        ("-(2+3)", "-5"),
        ("7/2", "3.50"),
        ("1/3*3", "1"),
        ("0.1+0.2", "0.30"),
        ("0.5*4", "2"),
    ],
)
def test_precedence_signs_and_fractions(text: str, value: str) -> None:
    assert written(evaluate(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12+",
        "2**9",
        "7//2",
        "7%2",
        "a+1",
        "True+1",
        "1.2.3",
        "1e5",
        "print(1)",
        "(1).real",
        "1<2",
        "[1]",
        "05+1",
        "1,2",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ArithmeticFault, match="bad expression"):
        evaluate(text)


@pytest.mark.parametrize("text", ["(" * 60 + "1" + ")" * 60, "1+" * 60 + "1", "9" * 5000])
def test_long_text_is_refused_unparsed(text: str) -> None:
    with pytest.raises(ArithmeticFault, match="bad expression"):
        evaluate(text)


def test_division_by_zero_and_large_values_are_named() -> None:
    with pytest.raises(ArithmeticFault, match="division by zero"):
        evaluate("1/(2-2)")
    with pytest.raises(ArithmeticFault, match="out of bounds"):
        evaluate("99999*99999")
