"""How a step fails."""

from __future__ import annotations


class NonFiniteLoss(ArithmeticError):
    """A loss or gradient was NaN or infinite; the weights and the optimizer are as they were before the step."""
