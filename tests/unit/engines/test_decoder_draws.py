"""Draws and cuts of the reference engine's decoder, against the model's own distribution in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import VOCABULARY, make_model, prompt

from asyncopd.engines.decoder import Decoder, Row
from asyncopd.records import NO_DRAWS, Draws, DrawSpec, Sampling

MOST = DrawSpec(head=6, tail=4, iid=3)


@pytest.fixture(scope="module")
def model():
    return make_model(0, tied=True)


def row(context_ids: list[int], draws: DrawSpec = MOST, count: int = 12, resumed: int = 0, **sampling: Any) -> Row:
    settings = {"temperature": 0.8, "max_tokens": count, "seed": 0, "stop_ids": (), **sampling}
    return Row(context_ids=context_ids, resumed=resumed, count=count, draws=draws, sampling=Sampling(**settings))


def sample(model, *rows: Row) -> list[Draws | None]:
    """Decode the rows together to their ends."""
    decoder = Decoder(model)
    finished = decoder.step(rows, [])
    while len(finished) < len(rows):
        finished += decoder.step([], [])
    return [one.drawn for one in rows]


@torch.no_grad()
def exact_logp(model, one: Row) -> np.ndarray:
    """Return log μ before each token, float64 [R, V]."""
    logits_TV = model(torch.tensor([[*one.context_ids, *one.ids]])).logits[0].double()
    return torch.log_softmax(logits_TV / one.sampling.temperature, -1)[len(one.context_ids) - 1 : -1].numpy()


def test_draws_have_the_log_probs_of_the_policy_in_any_company(model):
    rows = [row(prompt(3 + seed, seed), seed=seed, count=5 + seed) for seed in range(6)]
    for one, draws in zip(rows, sample(model, *rows), strict=True):
        logp_RV = exact_logp(model, one)
        for ids_RM, found_RM in (
            (draws.head_ids_RK, draws.head_logp_RK),
            (draws.tail_ids_RM, draws.tail_logp_RM),
            (draws.iid_ids_RM, draws.iid_logp_RM),
        ):
            np.testing.assert_allclose(found_RM, np.take_along_axis(logp_RV, ids_RM, 1), atol=1e-5)
        np.testing.assert_array_equal(draws.head_ids_RK, np.argsort(-logp_RV, axis=1)[:, :6])
        assert not (draws.tail_ids_RM[:, :, None] == draws.head_ids_RK[:, None]).any()


def test_draws_depend_on_seed_and_position_and_not_on_the_company(model):
    (alone,) = sample(model, row(prompt(5), seed=3))
    together, _, other = sample(model, row(prompt(5), seed=3), row(prompt(9, 1)), row(prompt(5), seed=4))
    np.testing.assert_array_equal(alone.iid_ids_RM, together.iid_ids_RM)
    np.testing.assert_array_equal(alone.tail_ids_RM, together.tail_ids_RM)
    assert (alone.iid_ids_RM[0] != other.iid_ids_RM[0]).any()


def test_wanting_draws_changes_no_token(model):
    plain, drawing = row(prompt(5), NO_DRAWS), row(prompt(5))
    assert sample(model, plain) == [None]
    sample(model, drawing)
    assert plain.ids == drawing.ids and plain.logp == drawing.logp


def test_a_resumed_turn_draws_what_the_undisturbed_one_did(model):
    whole = row(prompt(5))
    (draws,) = sample(model, whole)
    (rest,) = sample(model, row([*prompt(5), *whole.ids[:7]], count=5, resumed=7))
    np.testing.assert_array_equal(rest.iid_ids_RM, draws.iid_ids_RM[7:])
    np.testing.assert_array_equal(rest.tail_ids_RM, draws.tail_ids_RM[7:])


def test_draws_and_the_generated_token_are_independent(model):
    rows = [row(prompt(4), DrawSpec(iid=1), count=1, seed=seed) for seed in range(2500)]
    drawn = np.array([draws.iid_ids_RM[0, 0] for draws in sample(model, *rows)])
    generated = np.array([one.ids[0] for one in rows])
    probability_V = np.exp(exact_logp(model, rows[0])[0])
    same, expected = (drawn == generated).mean(), (probability_V**2).sum()
    assert abs(same - expected) < 4 * np.sqrt(expected * (1 - expected) / len(rows))


@pytest.mark.parametrize("cut", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 8, "top_p": 0.7}, {"top_p": 1e-6}])
def test_a_cut_policy_samples_the_likeliest_only_and_has_log_probs_of_its_own(model, cut):
    rows = [row(prompt(4), NO_DRAWS, count=1, seed=seed, **cut) for seed in range(300)]
    sample(model, *rows)
    probability_V = np.exp(exact_logp(model, rows[0])[0])
    falling_V = np.argsort(-probability_V)[: cut.get("top_k", VOCABULARY)]
    share_V = probability_V[falling_V] / probability_V[falling_V].sum()
    left = int((np.cumsum(share_V) - share_V < cut.get("top_p", 1.0)).sum())
    expected = dict(zip(falling_V[:left].tolist(), np.log(share_V[:left] / share_V[:left].sum()), strict=True))
    assert {one.ids[0] for one in rows} == set(expected)
    for one in rows:
        assert one.logp[0] == pytest.approx(expected[one.ids[0]], abs=1e-5)
