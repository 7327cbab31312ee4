"""The freshness formula, its weight, and the drift estimate against exact enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.config.scheduler import FreshnessSection
from asyncopd.signals.freshness import drift, freshness, weight

SECTION = FreshnessSection(alpha=0.5, beta=2.0)


def test_on_policy_samples_are_wholly_fresh_and_count_fully() -> None:
    assert freshness(0, 4, 0.0, 0.0, SECTION) == 1.0
    assert weight(1.0, xi=0.9) == 1.0


def test_freshness_follows_the_formula() -> None:
    f = freshness(np.array([0.0, 1.0, 4.0]), 4, np.array([0.0, 0.09, 0.25]), 0.04, SECTION)
    expected = [
        1 / (lag / 4 + 1) * math.exp(-0.5 * math.sqrt(roll) - 2.0 * math.sqrt(0.04))
        for lag, roll in ((0.0, 0.0), (1.0, 0.09), (4.0, 0.25))
    ]
    assert f == pytest.approx(expected, rel=1e-14)


def test_without_allowed_staleness_a_lag_counts_in_whole_steps() -> None:
    assert freshness(1.0, 0, 0.0, 0.0, SECTION) == freshness(1.0, 1, 0.0, 0.0, SECTION) == 0.5


def test_weight_is_zero_at_the_floor_and_linear_above_it() -> None:
    assert weight(np.array([0.1, 0.25, 0.625, 1.0]), xi=0.25) == pytest.approx([0.0, 0.0, 0.5, 1.0])


@given(lag=st.floats(0, 64), staleness=st.integers(0, 8), roll=st.floats(0, 50), supervision=st.floats(0, 50))
def test_freshness_falls_with_lag_and_with_either_drift(
    lag: float, staleness: int, roll: float, supervision: float
) -> None:
    f = freshness(lag, staleness, roll, supervision, SECTION)
    assert 0 < f <= 1
    assert freshness(lag + 1, staleness, roll, supervision, SECTION) < f
    assert freshness(lag, staleness, roll + 1, supervision, SECTION) < f
    assert freshness(lag, staleness, roll, supervision + 1, SECTION) < f


def test_drift_is_unbiased_for_the_divergence_of_learner_from_behaviour_policy() -> None:
    generator = np.random.default_rng(0)
    behaviour, learner = generator.dirichlet(np.ones(7), size=2)
    log_ratio = np.log(learner) - np.log(behaviour)
    expected = sum(behaviour[v] * drift(log_ratio[v : v + 1]) for v in range(7))
    assert expected == pytest.approx(float(learner @ log_ratio), abs=1e-12)


def test_drift_is_exact_where_policies_nearly_agree() -> None:
    assert drift(np.array([1e-9])) == pytest.approx(5e-19, rel=1e-6)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8))
def test_drift_is_never_negative(log_ratio: list[float]) -> None:
    assert drift(np.array(log_ratio)) >= 0.0


def test_drift_forgives_the_mismatch_of_lag_0_and_no_more() -> None:
    noisy = np.array([0.1, -0.1])
    measured = drift(noisy)
    assert drift(noisy, mismatch=measured) == 0.0
    assert drift(noisy, mismatch=2 * measured) == 0.0
    assert drift(noisy, mismatch=measured / 4) == pytest.approx(measured * 3 / 4)


def test_no_tokens_have_no_drift() -> None:
    assert drift(np.array([])) == 0.0
