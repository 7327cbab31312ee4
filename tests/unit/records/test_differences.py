"""Differences of log-probabilities keep their mean and greatest exactly, and their quantiles to a bin."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from asyncopd.records import Differences


@pytest.fixture
def difference_R():
    random = np.random.default_rng(0)
    return random.normal(size=5000) * 10.0 ** random.uniform(-6, 1, size=5000)


def test_mean_and_greatest_are_exact_and_quantiles_are_high_by_a_bin_at_most(difference_R):
    found = Differences.of(difference_R)
    assert found.mean == pytest.approx(np.abs(difference_R).mean())
    assert found.greatest == np.abs(difference_R).max()
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = np.quantile(np.abs(difference_R), share, method="inverted_cdf")
        assert exact <= found.quantile(share) * (1 + 1e-12) <= exact * 10**0.05 * (1 + 1e-9)


def test_a_sum_describes_all_its_tokens(difference_R):
    parts = sum(map(Differences.of, np.array_split(difference_R, 7)), Differences())
    whole = Differences.of(difference_R)
    assert parts.bins == whole.bins
    assert parts.figures() == {**whole.figures(), "mean": pytest.approx(whole.mean)}


def test_they_survive_a_json_line(difference_R):
    found = Differences.of(difference_R)
    line = json.dumps(msgspec.to_builtins(found, str_keys=True))
    assert msgspec.convert(json.loads(line), Differences, strict=False) == found


def test_equal_numbers_differ_by_nothing():
    figures = Differences.of(np.zeros(3)).figures()
    assert figures == {"mean": 0.0, "p99": 0.0, "max": 0.0, "tokens": 3}


def test_nothing_compared_is_not_agreement():
    assert Differences.of(np.zeros(0)).figures() == {"mean": None, "p99": None, "max": None, "tokens": 0}


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_an_engine_that_answers_no_number_disagrees_utterly(broken):
    found = Differences.of(np.array([0.0, broken]))
    assert found.mean > 1e8
    json.dumps(found.figures(), allow_nan=False)
