"""Sampling estimators by exact expectation over all draws, in float64.

Shapes: V vocabulary, M draws a position.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from asyncopd.objectives import reverse_kl_head_tail, reverse_kl_mc
from asyncopd.objectives.ratios import MAX_LOG_RATIO, log_ratio
from asyncopd.objectives.trust import unlimited

V = 5


@pytest.fixture(params=range(4))
def policies(request) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the learner; log T; log μ of a behaviour policy that lags behind."""
    generator = torch.Generator().manual_seed(request.param)
    learner_V, teacher_V, noise_V = (torch.randn(V, generator=generator, dtype=torch.float64) for _ in range(3))
    return learner_V.requires_grad_(), (2 * teacher_V).log_softmax(-1), (learner_V.detach() + noise_V).log_softmax(-1)


def expected_gradient(loss, learner_V, behaviour_V, draws: int) -> torch.Tensor:
    """Return the expectation over all `draws`-tuples from μ of the gradient of `loss(ids_1M)`."""
    total_V = torch.zeros(V, dtype=torch.float64)
    for ids in itertools.product(range(V), repeat=draws):
        ids_1M = torch.tensor([ids])
        gradient_V = torch.autograd.grad(loss(ids_1M).sum(), learner_V)[0]
        total_V += behaviour_V[ids_1M].sum().exp() * gradient_V
    return total_V


def exact_gradient(learner_V, target_V) -> torch.Tensor:
    logp_V = learner_V.log_softmax(-1)
    return torch.autograd.grad((logp_V.exp() * (logp_V - target_V)).sum(), learner_V)[0]


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("distill_temperature", [1.0, 2.0])
def test_reverse_kl_mc_is_unbiased_under_a_stale_behaviour_policy(policies, draws, distill_temperature):
    learner_V, teacher_V, behaviour_V = policies

    def scaled():
        return (learner_V / distill_temperature).log_softmax(-1)

    def loss(ids_1M):
        return reverse_kl_mc(scaled()[ids_1M], teacher_V[ids_1M], behaviour_V[ids_1M])

    logp_V = scaled()
    exact_V = torch.autograd.grad((logp_V.exp() * (logp_V - teacher_V)).sum(), learner_V)[0]
    assert torch.allclose(expected_gradient(loss, learner_V, behaviour_V, draws), exact_V, atol=1e-8, rtol=0)


def test_its_value_is_unbiased_too(policies):
    learner_V, teacher_V, behaviour_V = policies
    logp_V = learner_V.log_softmax(-1)
    losses_V = reverse_kl_mc(logp_V[:, None], teacher_V[:, None], behaviour_V[:, None])
    exact = (logp_V.exp() * (logp_V - teacher_V)).sum()
    assert (behaviour_V.exp() * losses_V).sum().item() == pytest.approx(exact.item(), abs=1e-8)


def test_an_advantage_fixed_at_rollout_time_is_biased(policies):
    learner_V, teacher_V, behaviour_V = policies

    def loss(ids_1M):
        stale = teacher_V[ids_1M] - behaviour_V[ids_1M]
        return unlimited(stale, log_ratio(learner_V.log_softmax(-1)[ids_1M], behaviour_V[ids_1M]))

    gradient_V = expected_gradient(loss, learner_V, behaviour_V, 1)
    assert (gradient_V - exact_gradient(learner_V, teacher_V)).abs().max() > 1e-2


def test_on_policy_each_token_has_the_gradient_of_half_the_squared_log_ratio(policies):
    learner_V, teacher_V, _ = policies
    behaviour_V = learner_V.detach().log_softmax(-1)
    for token in range(V):
        ids_11 = torch.tensor([[token]])
        logp_11 = learner_V.log_softmax(-1)[ids_11]
        ours_V = torch.autograd.grad(reverse_kl_mc(logp_11, teacher_V[ids_11], behaviour_V[ids_11]).sum(), learner_V)[0]
        squared = 0.5 * (learner_V.log_softmax(-1)[token] - teacher_V[token]) ** 2
        assert torch.allclose(ours_V, torch.autograd.grad(squared, learner_V)[0], atol=1e-12)


def test_a_summed_kl_as_the_advantage_of_the_same_token_has_no_expected_gradient(policies):
    """Why the signal weighs each token by its own log-ratio, never by a sum over the support."""
    learner_V, teacher_V, _ = policies
    behaviour_V = learner_V.detach().log_softmax(-1)
    summed = (behaviour_V.exp() * (teacher_V - behaviour_V)).sum()

    def loss(ids_1M):
        return unlimited(summed, log_ratio(learner_V.log_softmax(-1)[ids_1M], behaviour_V[ids_1M]))

    assert expected_gradient(loss, learner_V, behaviour_V, 1).abs().max() < 1e-12
    assert exact_gradient(learner_V, teacher_V).abs().max() > 1e-2


def test_a_ratio_beyond_its_limit_is_held_and_pushes_no_further():
    logp = torch.tensor([[0.0, -1.0]], requires_grad=True)
    loss = reverse_kl_mc(logp, torch.tensor([[-3.0, -3.0]]), torch.tensor([[-1e4, -1.0]]))
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    assert torch.isfinite(loss).all()
    assert gradient[0, 0] == 0 and gradient[0, 1] != 0
    assert log_ratio(torch.tensor(0.0), torch.tensor(-1e4)) == MAX_LOG_RATIO


def head_tail(logp_V, teacher_V, behaviour_V, head: int):
    """Return the head, log μ given not in it, and the loss as a function of the tail's draws."""
    head_K = behaviour_V.topk(head).indices
    rest_V = behaviour_V.scatter(0, head_K, -torch.inf).log_softmax(-1)

    def loss(ids_1M):
        ids_1N = torch.cat([head_K[None], ids_1M], dim=1)
        return reverse_kl_head_tail(logp_V()[ids_1N], teacher_V[ids_1N], behaviour_V[ids_1N], head)

    return rest_V, loss


@pytest.mark.parametrize("head", [1, 2, 4])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("distill_temperature", [1.0, 2.0])
def test_reverse_kl_head_tail_is_unbiased_under_a_stale_behaviour_policy(policies, head, draws, distill_temperature):
    learner_V, teacher_V, behaviour_V = policies

    def scaled():
        return (learner_V / distill_temperature).log_softmax(-1)

    rest_V, loss = head_tail(scaled, teacher_V, behaviour_V, head)
    exact = (scaled().exp() * (scaled() - teacher_V)).sum()
    exact_V = torch.autograd.grad(exact, learner_V)[0]
    assert torch.allclose(expected_gradient(loss, learner_V, rest_V, draws), exact_V, atol=1e-8, rtol=0)
    value = sum(rest_V[token].exp() * loss(torch.tensor([[token]])).item() for token in range(V))
    assert value.item() == pytest.approx(exact.item(), abs=1e-8)


def test_its_gradient_varies_less_than_that_of_as_many_independent_draws(policies):
    learner_V, teacher_V, behaviour_V = policies

    def squared_error(loss, draw_V, draws):
        exact_V = exact_gradient(learner_V, teacher_V)
        tuples = [torch.tensor([ids]) for ids in itertools.product(range(V), repeat=draws)]
        return sum(
            draw_V[ids_1M].sum().exp()
            * (torch.autograd.grad(loss(ids_1M).sum(), learner_V)[0] - exact_V).square().sum()
            for ids_1M in tuples
            if draw_V[ids_1M].isfinite().all()
        )

    def logp_V():
        return learner_V.log_softmax(-1)

    rest_V, ours = head_tail(logp_V, teacher_V, behaviour_V, 2)
    theirs = squared_error(
        lambda ids_1M: reverse_kl_mc(logp_V()[ids_1M], teacher_V[ids_1M], behaviour_V[ids_1M]), behaviour_V, 3
    )
    assert squared_error(ours, rest_V, 1) < theirs


def test_a_head_without_its_tail_is_biased(policies):
    """Why the tail is drawn from at all."""
    learner_V, teacher_V, behaviour_V = policies
    logp_V = learner_V.log_softmax(-1)
    head_K = behaviour_V.topk(2).indices
    loss = -(logp_V[head_K].exp() * (teacher_V - logp_V)[head_K].detach()).sum()
    difference_V = torch.autograd.grad(loss, learner_V)[0] - exact_gradient(learner_V, teacher_V)
    assert difference_V.abs().max() > 1e-2


def test_a_tail_that_had_nothing_to_draw_has_no_share():
    logp_1N = torch.tensor([[0.6, 0.3, 0.6]]).log().requires_grad_()
    behaviour_1N = torch.tensor([[0.7, 0.2999999, 0.0]]).log()  # rounding leaves a mass of 1e-7
    teacher_1N = torch.tensor([[0.5, 0.4, 0.5]]).log()
    loss_1 = reverse_kl_head_tail(logp_1N, teacher_1N, behaviour_1N, head=2)
    assert loss_1.item() == pytest.approx(0.6 * np.log(0.6 / 0.5) + 0.3 * np.log(0.3 / 0.4), abs=1e-6)
    (gradient_1N,) = torch.autograd.grad(loss_1.sum(), logp_1N)
    assert torch.isfinite(gradient_1N).all() and gradient_1N[0, 2] == 0
