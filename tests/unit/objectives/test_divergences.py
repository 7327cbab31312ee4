"""Divergences against exact enumeration over a small vocabulary, in float64.

Shapes: V vocabulary, K support entries.
"""

from __future__ import annotations

import pytest
import torch

from asyncopd.objectives import forward_kl, reverse_kl_topk
from asyncopd.objectives.tail import log_tail, tail_probability

V = 8


@pytest.fixture(params=range(4))
def logits(request) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of learner and teacher."""
    generator = torch.Generator().manual_seed(request.param)
    learner_V, teacher_V = (2 * torch.randn(V, generator=generator, dtype=torch.float64) for _ in range(2))
    return learner_V.requires_grad_(), teacher_V


def value_and_gradient(loss, learner_V, teacher_V, ids_K):
    logp_1K = learner_V.log_softmax(-1)[ids_K][None]
    value = loss(logp_1K, teacher_V.log_softmax(-1)[ids_K][None])[0]
    return value.item(), torch.autograd.grad(value, learner_V)[0]


def probability_jacobian(learner_V: torch.Tensor) -> torch.Tensor:
    """Return dπ_v/dz_u, written out."""
    p_V = learner_V.detach().softmax(-1)
    return torch.diag(p_V) - torch.outer(p_V, p_V)


def coarse(logits_V: torch.Tensor, ids_K: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of the support's ids and of everything else, K + 1 of them."""
    p_V = logits_V.detach().softmax(-1)
    return torch.cat([p_V[ids_K], 1 - p_V[ids_K].sum()[None]])


@pytest.mark.parametrize("k", [1, 3, 7])
def test_reverse_kl_over_a_support_has_the_documented_value_and_gradient(logits, k):
    learner_V, teacher_V = logits
    ids_K = teacher_V.topk(k).indices
    value, gradient_V = value_and_gradient(reverse_kl_topk, learner_V, teacher_V, ids_K)
    p, t = coarse(learner_V, ids_K), coarse(teacher_V, ids_K)
    advantage = t.log() - p.log()
    jacobian_KV = probability_jacobian(learner_V)[ids_K]
    expected_V = -(advantage[:k, None] * jacobian_KV).sum(0) + advantage[k] * jacobian_KV.sum(0)
    assert value == pytest.approx((p * (p.log() - t.log())).sum().item(), abs=1e-8)
    assert torch.allclose(gradient_V, expected_V, atol=1e-8, rtol=0)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_forward_kl_over_a_support_has_the_documented_value_and_gradient(logits, k):
    learner_V, teacher_V = logits
    ids_K = teacher_V.topk(k).indices
    value, gradient_V = value_and_gradient(forward_kl, learner_V, teacher_V, ids_K)
    p, t = coarse(learner_V, ids_K), coarse(teacher_V, ids_K)
    jacobian_KV = probability_jacobian(learner_V)[ids_K]
    expected_V = -(t[:k, None] / p[:k, None] * jacobian_KV).sum(0) + t[k] / p[k] * jacobian_KV.sum(0)
    assert value == pytest.approx((t * (t.log() - p.log())).sum().item(), abs=1e-8)
    assert torch.allclose(gradient_V, expected_V, atol=1e-8, rtol=0)


@pytest.mark.parametrize("loss", [reverse_kl_topk, forward_kl])
def test_over_the_whole_vocabulary_a_divergence_is_exact(logits, loss):
    learner_V, teacher_V = logits
    value, gradient_V = value_and_gradient(loss, learner_V, teacher_V, torch.arange(V))
    logp_V, teacher_logp_V = learner_V.log_softmax(-1), teacher_V.log_softmax(-1)
    if loss is reverse_kl_topk:
        exact = (logp_V.exp() * (logp_V - teacher_logp_V)).sum()
    else:
        exact = (teacher_logp_V.exp() * (teacher_logp_V - logp_V)).sum()
    assert value == pytest.approx(exact.item(), abs=1e-8)
    assert torch.allclose(gradient_V, torch.autograd.grad(exact, learner_V)[0], atol=1e-8, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [3, V])
@pytest.mark.parametrize("loss", [reverse_kl_topk, forward_kl])
def test_a_teacher_equal_to_the_student_teaches_nothing(logits, loss, k, dtype):
    learner_V = logits[0].detach().to(dtype).requires_grad_()
    _, gradient_V = value_and_gradient(loss, learner_V, learner_V.detach(), torch.arange(k))
    assert gradient_V.abs().max() < 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("loss", [reverse_kl_topk, forward_kl])
def test_float32_agrees_with_float64(logits, loss):
    learner_V, teacher_V = logits
    ids_K = teacher_V.topk(4).indices
    value, gradient_V = value_and_gradient(loss, learner_V, teacher_V, ids_K)
    single_V = learner_V.detach().float().requires_grad_()
    single_value, single_gradient_V = value_and_gradient(loss, single_V, teacher_V.float(), ids_K)
    assert single_value == pytest.approx(value, abs=1e-5)
    assert torch.allclose(single_gradient_V.double(), gradient_V, atol=1e-5, rtol=0)


@pytest.mark.parametrize("loss", [reverse_kl_topk, forward_kl])
def test_a_tail_below_rounding_stays_finite(loss):
    learner_V = torch.tensor([60.0, 0.0, 0.0], requires_grad=True)
    value, gradient_V = value_and_gradient(loss, learner_V, torch.tensor([0.0, 60.0, 0.0]), torch.arange(2))
    assert torch.isfinite(torch.tensor(value)) and torch.isfinite(gradient_V).all()


def test_the_tail_is_what_the_support_leaves(logits):
    logp_V = logits[0].log_softmax(-1)
    rest = logp_V[3:].logsumexp(-1)
    assert log_tail(logp_V[None, :3])[0].item() == pytest.approx(rest.item(), abs=1e-12)
    assert tail_probability(logp_V[None, :3])[0].item() == pytest.approx(rest.exp().item(), abs=1e-12)


@pytest.mark.parametrize("loss", [reverse_kl_topk, forward_kl])
def test_a_tail_that_is_told_counts_as_the_one_left_over(logits, loss):
    learner_V, teacher_V = logits
    ids_K = teacher_V.topk(5).indices
    logp_1K, teacher_1K = learner_V.log_softmax(-1)[ids_K][None], teacher_V.log_softmax(-1)[ids_K][None]
    assert torch.allclose(loss(logp_1K, teacher_1K, log_tail(teacher_1K)), loss(logp_1K, teacher_1K), atol=1e-8, rtol=0)


def test_a_small_tail_that_is_told_survives_rounded_log_probs():
    most_2 = -torch.tensor([600.49, 1200.49], dtype=torch.float64) / 2**10  # both are rounded up
    teacher_1K = torch.cat([most_2, (1 - 1e-4 - most_2.exp().sum()).log()[None]])[None]
    logp_1K = torch.tensor([[0.5, 0.3, 0.1]], dtype=torch.float64).log()
    exact_1 = reverse_kl_topk(logp_1K, teacher_1K)
    rounded_1K = (teacher_1K * 2**10).round() / 2**10
    assert (reverse_kl_topk(logp_1K, rounded_1K, log_tail(teacher_1K)) - exact_1).abs() < 2**-11
    assert (reverse_kl_topk(logp_1K, rounded_1K) - exact_1).abs() > 0.5
