"""Presets: names, supports, options, weights and regularisers."""

from __future__ import annotations

import pytest
import torch

from asyncopd.config.objective import ObjectiveSection
from asyncopd.errors import UserError
from asyncopd.objectives import Composition, Context, Needs, Term, cross_entropy, reverse_kl_mc
from asyncopd.objectives.presets import PRESETS, build, fed_by
from asyncopd.objectives.tail import log_tail
from asyncopd.records import DrawSpec, Support, SupportKind

V = 5


def context_of(logp_R, behaviour_R, teacher_RK, logp_RK, lag_R=None, freshness_R=None, behaviour_RK=None) -> Context:
    return Context(
        logp_R=logp_R,
        behaviour_R=behaviour_R,
        lag_R=torch.zeros(len(logp_R), dtype=torch.int64) if lag_R is None else lag_R,
        freshness_R=torch.ones_like(logp_R) if freshness_R is None else freshness_R,
        logp_RK=logp_RK,
        teacher_RK=teacher_RK,
        teacher_tail_R=log_tail(teacher_RK),
        behaviour_RK=behaviour_R[:, None] if behaviour_RK is None else behaviour_RK,
    )


def enumerated(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return learner logits, log T and log μ over a vocabulary of V."""
    generator = torch.Generator().manual_seed(seed)
    learner_V, teacher_V, behaviour_V = (torch.randn(V, generator=generator, dtype=torch.float64) for _ in range(3))
    return learner_V.requires_grad_(), teacher_V.log_softmax(-1), behaviour_V.log_softmax(-1)


def every_token(lag: int, **changes) -> tuple[Context, torch.Tensor, torch.Tensor]:
    """Return a context with one row per token of the vocabulary, the learner's logits, and log μ."""
    learner_V, teacher_V, behaviour_V = enumerated()
    logp_V = learner_V.log_softmax(-1)
    lag_R = torch.full((V,), lag)
    return (
        context_of(logp_V, behaviour_V, teacher_V[:, None], logp_V[:, None], lag_R, **changes),
        learner_V,
        behaviour_V,
    )


@pytest.mark.parametrize(
    ("section", "support", "draws"),
    [
        ({"use": "reverse_kl_topk"}, Support(kind=SupportKind.TEACHER_TOPK, width=16), DrawSpec()),
        (
            {"use": "reverse_kl_topk", "options": {"support": "student"}},
            Support(kind=SupportKind.STUDENT_TOPK, width=16),
            DrawSpec(head=16),
        ),
        ({"use": "forward_kl"}, Support(kind=SupportKind.TEACHER_TOPK, width=16), DrawSpec()),
        ({"use": "reverse_kl_mc"}, Support(kind=SupportKind.DRAWS, width=16), DrawSpec(iid=15)),
        ({"use": "reverse_kl_mc", "width": 1}, Support(kind=SupportKind.SAMPLED), DrawSpec()),
        ({"use": "reverse_kl_head_tail"}, Support(kind=SupportKind.DRAWS, width=16), DrawSpec(head=8, tail=8)),
        (
            {"use": "reverse_kl_head_tail", "options": {"tail": 4}},
            Support(kind=SupportKind.DRAWS, width=16),
            DrawSpec(head=12, tail=4),
        ),
        ({"use": "cross_entropy"}, None, DrawSpec()),
    ],
)
def test_a_preset_says_which_scores_and_draws_it_needs(section, support, draws):
    objective = build(ObjectiveSection(**{"width": 16, **section}))
    assert objective.support == objective.needs.support == support
    assert objective.needs.behaviour == (support is not None)
    assert objective.needs.draws == draws


@pytest.mark.parametrize(
    ("section", "whole"),
    [
        ({"use": "reverse_kl_topk"}, False),
        ({"use": "forward_kl", "options": {"drift": 0.5}}, True),
        ({"use": "reverse_kl_mc", "width": 1}, True),
        ({"use": "reverse_kl_head_tail"}, True),
    ],
)
def test_a_preset_with_a_ratio_needs_the_whole_distribution(section, whole):
    assert build(ObjectiveSection(**section)).needs.whole == whole


@pytest.mark.parametrize(
    ("offered", "presets"),
    [
        (DrawSpec(), ["reverse_kl_topk", "forward_kl"]),
        (DrawSpec(iid=7), ["reverse_kl_topk", "forward_kl", "reverse_kl_mc"]),
        (DrawSpec(head=4, tail=4), ["reverse_kl_topk", "forward_kl", "reverse_kl_head_tail"]),
    ],
)
def test_what_an_engine_draws_says_which_presets_it_feeds(offered, presets):
    assert fed_by(offered, width=8) == presets


@pytest.mark.parametrize("tail", [0, 16, 1.5, True, "half"])
def test_a_tail_that_leaves_no_head_or_is_none_is_refused(tail):
    with pytest.raises(UserError, match=r"objective\.options\.tail"):
        build(ObjectiveSection(use="reverse_kl_head_tail", width=16, options={"tail": tail}))


def test_a_support_of_nobodys_choice_is_refused():
    with pytest.raises(UserError, match=r"objective\.options\.support: got 'student_topk'"):
        build(ObjectiveSection(options={"support": "student_topk"}))


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'reverse_kl_topk'"):
        build(ObjectiveSection(use="reverse_kl_topc"))


@pytest.mark.parametrize("name", PRESETS)
def test_an_unknown_option_is_refused(name):
    with pytest.raises(UserError, match=r"objective\.options\.drif"):
        build(ObjectiveSection(use=name, options={"drif": 1.0}))


@pytest.mark.parametrize("value", [-1.0, "much", True])
def test_a_drift_that_is_no_coefficient_is_refused(value):
    with pytest.raises(UserError, match=r"objective\.options\.drift"):
        build(ObjectiveSection(options={"drift": value}))


def test_an_objective_of_ones_own_is_built_by_name():
    objective = build(ObjectiveSection(use="asyncopd.objectives.presets:cross_entropy"))
    assert objective.needs == Needs(support=None, behaviour=False)


def test_freshness_weighs_the_signal_and_has_no_gradient():
    weight_R = torch.linspace(0, 1, V, dtype=torch.float64).requires_grad_()
    context, _, _ = every_token(lag=1, freshness_R=weight_R)
    terms = build(ObjectiveSection(use="reverse_kl_mc")).terms(context, {}, {})
    unweighted_R = reverse_kl_mc(context.logp_RK, context.teacher_RK, context.behaviour_R[:, None])
    assert torch.allclose(terms["distill"], weight_R.detach() * unweighted_R)
    assert torch.autograd.grad(terms["distill"].sum(), weight_R, allow_unused=True) == (None,)


def test_drift_pulls_stale_tokens_towards_the_policy_that_sampled_them():
    objective = build(ObjectiveSection(use="reverse_kl_mc", options={"drift": 0.5}))
    context, learner_V, behaviour_V = every_token(lag=1, freshness_R=torch.zeros(V, dtype=torch.float64))
    expected = (behaviour_V.exp() * objective.terms(context, {}, {})["drift"]).sum()
    logp_V = learner_V.log_softmax(-1)
    exact = 0.5 * (logp_V.exp() * (logp_V - behaviour_V)).sum()
    assert expected.item() == pytest.approx(exact.item(), abs=1e-8)
    gradients = [torch.autograd.grad(value, learner_V, retain_graph=True)[0] for value in (expected, exact)]
    assert torch.allclose(*gradients, atol=1e-8, rtol=0)


def test_drift_leaves_fresh_tokens_alone():
    objective = build(ObjectiveSection(use="reverse_kl_mc", options={"drift": 0.5}))
    context, _, _ = every_token(lag=0)
    assert torch.equal(objective.terms(context, {}, {})["drift"], torch.zeros(V, dtype=torch.float64))


def test_stats_carry_no_gradient_and_report_coverage():
    logp_RK = torch.full((2, 4), -2.0, requires_grad=True)
    context = context_of(logp_RK[:, 0], torch.zeros(2), torch.full((2, 4), -2.0), logp_RK)
    stats = build(ObjectiveSection(use="forward_kl", width=4)).stats(context)
    assert torch.allclose(stats["coverage"], torch.full((2,), 4 * torch.tensor(-2.0).exp().item()))
    assert not any(value.requires_grad for value in stats.values())


def test_a_term_is_coefficient_times_weight_times_signal():
    composition = Composition(
        needs=Needs(support=None, behaviour=False),
        components={
            "likelihood": Term(lambda c: cross_entropy(c.logp_R), lambda c: torch.full_like(c.logp_R, 0.5), 3.0)
        },
    )
    logp_R = torch.tensor([-1.0, -2.0])
    empty_RK = torch.zeros(2, 0)
    terms = composition.terms(context_of(logp_R, torch.zeros(2), empty_RK, empty_RK), {}, {})
    assert terms["likelihood"].tolist() == [1.5, 3.0]
