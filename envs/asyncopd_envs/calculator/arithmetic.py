"""Arithmetic on text that a model wrote: a small grammar, exact, with bounds."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 80
ALPHABET = re.compile(r"[0-9.+*/() -]*")
MAX_VALUE = 10**9
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ArithmeticFault(ValueError):
    """The text is no expression of the grammar, or its value is out of bounds."""


def evaluate(expression: str) -> Fraction:
    """Return the exact value of decimal numbers joined by + - * / and brackets.

    Raises `ArithmeticFault` on anything else, on text longer than 80 characters, on division by zero,
    and as soon as a value exceeds 10⁹ in size.
    """
    # Python's own parser sees nothing but digits, operators and brackets, and little of them.
    if len(expression) > MAX_LENGTH or not ALPHABET.fullmatch(expression):
        raise ArithmeticFault("bad expression")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArithmeticFault("bad expression") from error
    return _value(tree.body)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            value = Fraction(str(number))  # as it is written, not as the nearest binary number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            numerator, denominator = _value(left), _value(right)
            if isinstance(op, ast.Div) and denominator == 0:
                raise ArithmeticFault("division by zero")
            value = OPERATORS[type(op)](numerator, denominator)
        case _:
            raise ArithmeticFault("bad expression")
    if abs(value) > MAX_VALUE:
        raise ArithmeticFault("out of bounds")
    return value


def written(value: Fraction) -> str:
    """Return a value as digits: whole, or rounded to two decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.2f}"
