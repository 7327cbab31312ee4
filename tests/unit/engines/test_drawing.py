"""Draws against their distributions, by enumeration and by counting.

Shapes: B positions, V vocabulary, M draws.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncopd.engines.drawing import draw, uniforms
from asyncopd.records import NO_DRAWS, DrawSpec

POSITIONS = 4000


def logits(vocabulary: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return one position's logits."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(1, vocabulary, generator=generator, dtype=torch.float64).to(dtype)


def numbers(spec: DrawSpec, positions: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(uniforms(range(seed, seed + positions), spec.tail + spec.iid))


def chi_square(ids: torch.Tensor, probability_V: np.ndarray) -> float:
    """Return Pearson's statistic in standard deviations above its mean, over ids expected five times or more."""
    expected_V = ids.numel() * probability_V
    found_V = np.bincount(ids.flatten().numpy(), minlength=len(probability_V))
    likely_V = expected_V >= 5
    degrees = likely_V.sum()
    return float(((found_V - expected_V)[likely_V] ** 2 / expected_V[likely_V]).sum() - degrees) / np.sqrt(2 * degrees)


@pytest.mark.parametrize("vocabulary", [12, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_independent_draws_follow_the_distribution(vocabulary, dtype):
    spec = DrawSpec(iid=8)
    logits_1V = logits(vocabulary, dtype)
    ids_BM, _ = draw(logits_1V.expand(POSITIONS, -1), spec, numbers(spec, POSITIONS))
    assert abs(chi_square(ids_BM, logits_1V.double().softmax(-1)[0].numpy())) < 4


@pytest.mark.parametrize("vocabulary", [12, 128, 300])
def test_tail_draws_follow_the_distribution_given_not_in_the_head(vocabulary):
    spec = DrawSpec(head=4, tail=8)
    logits_1V = logits(vocabulary, torch.float32)
    ids_BN, _ = draw(logits_1V.expand(POSITIONS, -1), spec, numbers(spec, POSITIONS))
    probability_V = logits_1V.double().softmax(-1)[0].numpy()
    probability_V[ids_BN[0, :4]] = 0
    assert not np.isin(ids_BN[:, 4:], ids_BN[0, :4]).any()
    assert abs(chi_square(ids_BN[:, 4:], probability_V / probability_V.sum())) < 4


def test_each_draw_is_where_the_cumulative_sum_passes_its_number():
    spec = DrawSpec(iid=500)
    logits_1V = logits(1000, torch.float64)
    uniform_1M = numbers(spec)
    ids_1M, _ = draw(logits_1V, spec, uniform_1M)
    cumulative_V = logits_1V.softmax(-1)[0].cumsum(-1)
    assert ids_1M[0].tolist() == torch.searchsorted(cumulative_V, uniform_1M[0], right=True).tolist()


def test_all_kinds_together_are_each_as_alone():
    logits_BV = torch.cat([logits(200, torch.float64, seed) for seed in range(3)])
    both = DrawSpec(head=5, tail=6, iid=7)
    uniform_BM = numbers(both, 3)
    ids_BN, logp_BN = draw(logits_BV, both, uniform_BM)
    for columns, spec, uniform in [
        (slice(0, 5), DrawSpec(head=5), uniform_BM[:, :0]),
        (slice(0, 11), DrawSpec(head=5, tail=6), uniform_BM[:, :6]),
        (slice(11, 18), DrawSpec(iid=7), uniform_BM[:, 6:]),
    ]:
        alone_ids, alone_logp = draw(logits_BV, spec, uniform)
        assert torch.equal(ids_BN[:, columns], alone_ids)
        assert torch.equal(logp_BN[:, columns], alone_logp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_are_those_of_the_whole_distribution(dtype):
    spec = DrawSpec(head=8, tail=8, iid=8)
    logits_BV = logits(5000, dtype).expand(3, -1)
    before = logits_BV.clone()
    ids_BN, logp_BN = draw(logits_BV, spec, numbers(spec, 3))
    exact_BN = logits_BV.double().log_softmax(-1).gather(1, ids_BN)
    assert (logp_BN - exact_BN).abs().max() < (1e-5 if dtype is torch.float32 else 1e-12)
    assert (logp_BN[:, :8].diff() <= 0).all()
    assert torch.equal(logits_BV, before)


def test_a_head_of_all_the_probability_leaves_a_tail_of_its_first_id_without_any():
    spec = DrawSpec(head=4, tail=3)
    nothing_left = torch.full((1, 300), -torch.inf)
    nothing_left[0, [7, 40, 200]] = torch.tensor([0.0, 2.0, 1.0])
    ids_BN, logp_BN = draw(torch.cat([nothing_left, logits(300, torch.float32)]), spec, numbers(spec, 2))
    assert ids_BN[0, [0, 1, 2, 4, 5, 6]].tolist() == [40, 200, 7, 40, 40, 40]
    assert torch.isneginf(logp_BN[0, 3:]).all()
    assert torch.isfinite(logp_BN[1]).all()
    assert draw(logits(4, torch.float32), spec, numbers(spec))[1][0, 4:].isneginf().all()


@pytest.mark.parametrize("vocabulary", [5, 127, 129, 300, 1000])
@pytest.mark.parametrize("finite", [1, 3, 1000])
def test_a_head_is_of_distinct_tokens_of_the_vocabulary_the_likeliest_first(vocabulary, finite):
    logits_1V = logits(vocabulary, torch.float32, seed=vocabulary)
    logits_1V[:, :-finite] = -torch.inf
    width = min(vocabulary, 200)
    ids_BN, logp_BN = draw(logits_1V, DrawSpec(head=width), numbers(NO_DRAWS))
    assert len(set(ids_BN[0].tolist())) == width and ids_BN.max() < vocabulary
    expected = logits_1V.sort(descending=True).values.log_softmax(-1)[:, :width]
    assert torch.allclose(logp_BN, expected, atol=1e-6)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2.0**-53])
def test_a_token_without_probability_is_never_drawn(number):
    sparse = torch.full((2, 400), -torch.inf)
    sparse[0, [130, 131, 270]] = torch.tensor([0.0, -30.0, -1.0])
    sparse[1, 399] = 0.0
    for spec in (DrawSpec(iid=1), DrawSpec(head=1, tail=1)):
        _, logp_BN = draw(sparse, spec, torch.full((2, 1), number, dtype=torch.float64))
        assert torch.isfinite(logp_BN[0]).all()
        assert torch.isfinite(logp_BN[1, 0])


def test_numbers_are_uniform_and_each_seed_has_its_own():
    many_BM = uniforms(range(2000), 50)
    assert many_BM.min() >= 0 and many_BM.max() < 1
    counts = np.histogram(many_BM, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 100 + 4 * np.sqrt(200)
    assert abs(np.corrcoef(many_BM[:, 0], many_BM[:, 1])[0, 1]) < 0.1
    assert abs(np.corrcoef(many_BM[:-1, 0], many_BM[1:, 0])[0, 1]) < 0.1
    np.testing.assert_array_equal(uniforms([7], 50)[0], many_BM[7])
    assert uniforms([2**63 - 1, 0], 1).shape == (2, 1)


def test_numbers_are_those_of_the_published_generator():
    # The first outputs of SplitMix64 with seed 1234567, as its authors give them.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    np.testing.assert_array_equal(uniforms([1234567], 3)[0], [(value >> 11) * 2.0**-53 for value in published])
