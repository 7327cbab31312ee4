"""The interval of a share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.evaluate.interval import wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(360, 400, 0.8667, 0.9258), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_known_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


@given(data=st.data(), trials=st.integers(1, 1000))
def test_bounds_are_the_shares_at_which_the_score_test_just_rejects(data: st.DataObject, trials: int) -> None:
    successes = data.draw(st.integers(0, trials))
    share = successes / trials
    for bound in wilson(successes, trials):
        assert 0 <= bound <= 1
        if 1e-6 < bound < 1 - 1e-6:
            z = abs(share - bound) / math.sqrt(bound * (1 - bound) / trials)
            assert z == pytest.approx(1.959964, abs=1e-4)
