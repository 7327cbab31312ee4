"""What the learner is given of a segment's draws."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch

from asyncopd.learner.member import Member, member_of
from asyncopd.objectives.needs import Needs
from asyncopd.records import Batch, Draws, DrawSpec, Sample, Scores, Support, SupportKind

SPEC = DrawSpec(head=3, tail=2, iid=2)
VOCABULARY = 48


def drawn(sample: Sample, support: Support | None, spec: DrawSpec = SPEC) -> Sample:
    """Return `sample` with draws of its generated tokens, and scores at `support`."""
    random = np.random.default_rng(sample.attempt)
    segment = sample.segment
    ids_RN = random.integers(0, VOCABULARY, (len(segment.generated_rows), spec.width)).astype(np.int32)
    draws = Draws.split(spec, ids_RN, -random.random(ids_RN.shape, np.float32))
    segment = msgspec.structs.replace(segment, draws=draws)
    if support is None:
        return msgspec.structs.replace(sample, segment=segment)
    ids_RK = segment.candidates(support.kind)[0][:, : support.width]
    scores = Scores(support=support, ids_RK=ids_RK, logp_RK=-random.random(ids_RK.shape, np.float32))
    return msgspec.structs.replace(sample, segment=segment, scores=scores)


def member(sample: Sample, support: Support) -> Member:
    found = member_of(sample, Needs(support=support, behaviour=True, draws=SPEC), step=0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "width"), [(SupportKind.DRAWS, 8), (SupportKind.STUDENT_TOPK, 3), (SupportKind.SAMPLED, 1)]
)
def test_log_probs_of_the_behaviour_policy_stand_beside_the_ids_they_are_of(make_batch, kind, width):
    support = Support(kind=kind, width=width)
    for sample in make_batch().samples:
        given = drawn(sample, support)
        found = member(given, support)
        ids_RN, logp_RN = given.segment.candidates(kind)
        np.testing.assert_array_equal(found.support_ids_RK, ids_RN)
        np.testing.assert_array_equal(found.behaviour_RK, logp_RN)
    if kind is not SupportKind.STUDENT_TOPK:
        column = 5 if kind is SupportKind.DRAWS else 0
        np.testing.assert_array_equal(found.support_ids_RK[:, column], found.targets_R)
        np.testing.assert_array_equal(found.behaviour_RK[:, column], found.behaviour_R)


def test_a_support_of_the_teachers_choice_has_no_log_probs_of_the_behaviour_policy(make_batch):
    (sample, *_) = make_batch().samples
    found = member(drawn(sample, None), Support(kind=SupportKind.TEACHER_TOPK, width=8))
    assert found.behaviour_RK.shape == (len(found), 0) and found.teacher_RK.shape == (len(found), 8)


def test_scores_of_other_ids_than_those_drawn_are_no_sample(make_batch):
    support = Support(kind=SupportKind.DRAWS, width=8)
    (sample, *_) = make_batch().samples
    given = drawn(sample, support)
    wrong = msgspec.structs.replace(given.scores, ids_RK=given.scores.ids_RK + 1)
    with pytest.raises(AssertionError, match="scores of other ids"):
        member(msgspec.structs.replace(given, scores=wrong), support)


@pytest.mark.parametrize("use", ["reverse_kl_head_tail", "reverse_kl_mc"])
def test_a_step_on_draws_is_the_estimators_mean_over_tokens(
    make_learner: Callable[..., object], make_batch: Callable[..., Batch], use: str
):
    spec = DrawSpec(head=4, tail=4) if use == "reverse_kl_head_tail" else DrawSpec(iid=7)
    support = Support(kind=SupportKind.DRAWS, width=8)
    batch = make_batch()
    batch = msgspec.structs.replace(batch, samples=[drawn(sample, support, spec) for sample in batch.samples])
    learner = make_learner(use=use, width=8)
    members = [m for sample in batch.samples if (m := member_of(sample, learner.objective.needs, 0))]
    losses = []
    with torch.no_grad():
        for one in members:
            context = learner._forward([one]).context([1.0])
            (loss_R,) = learner.objective.terms(context, {}, {}).values()
            losses.append(loss_R)
    report = learner.step(batch)
    assert report.metrics["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)
    assert report.metrics["grad_norm"] > 0
