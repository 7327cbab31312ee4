"""One optimizer step: against a plain padded loop, and by its invariants."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch

from asyncopd.learner.failure import NonFiniteLoss
from asyncopd.objectives import forward_kl, reverse_kl_topk
from asyncopd.records import Batch, LossMask, Scores, Support, SupportKind

# A large epsilon keeps Adam from blowing rounding differences of vanishing gradients up to whole steps.
SMOOTH = {"lr": 0.05, "eps": 1e-2}


def weights(learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.named_tensors()}


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], atol=tolerance, rtol=0), name


def changed(batch: Batch, index: int, **fields) -> Batch:
    """Return the batch with fields of one sample replaced."""
    samples = list(batch.samples)
    samples[index] = msgspec.structs.replace(samples[index], **fields)
    return msgspec.structs.replace(batch, samples=samples)


def padded_gradient(model, batch: Batch, loss, temperature: float) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradient by full logits over right-padded rows."""
    longest = max(len(sample.segment) for sample in batch.samples)
    ids = torch.zeros(len(batch.samples), longest, dtype=torch.int64)
    attention = torch.zeros_like(ids)
    for row, sample in enumerate(batch.samples):
        ids[row, : len(sample.segment)] = torch.from_numpy(sample.segment.ids_T)
        attention[row, : len(sample.segment)] = 1
    logp = (model(input_ids=ids, attention_mask=attention).logits / temperature).log_softmax(-1)
    losses = []
    for row, sample in enumerate(batch.samples):
        support_ids = torch.from_numpy(sample.scores.ids_RK).long()
        logp_RK = logp[row, sample.segment.trained_rows - 1].gather(1, support_ids)
        losses.append(loss(logp_RK, torch.from_numpy(sample.scores.logp_RK)))
    mean = torch.cat(losses).mean()
    mean.backward()
    return mean.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("use", "loss"), [("reverse_kl_topk", reverse_kl_topk), ("forward_kl", forward_kl)])
@pytest.mark.parametrize("distill_temperature", [1.0, 2.0])
def test_a_packed_step_equals_padding_and_full_logits(
    make_learner, make_batch, reference, use, loss, distill_temperature
):
    batch = make_batch()
    expected_loss, gradient = padded_gradient(reference, batch, loss, distill_temperature)
    norm = torch.stack([g.norm() for g in gradient.values()]).norm().item()
    learner = make_learner(use=use, distill_temperature=distill_temperature, micro_batch_tokens=64, optimizer=SMOOTH)
    report = learner.step(batch)
    assert report.metrics["loss"] == pytest.approx(expected_loss, abs=1e-5)
    assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.05, eps=1e-2, betas=(0.9, 0.98), weight_decay=0.0)
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    optimizer.step()
    assert_close(weights(learner), dict(reference.named_parameters()), 1e-5)


@pytest.mark.parametrize("optimizer", [SMOOTH, {"use": "muon", **SMOOTH}])
def test_the_split_into_micro_batches_leaves_the_step_unchanged(make_learner, make_batch, optimizer):
    whole, split = (make_learner(micro_batch_tokens=tokens, optimizer=optimizer) for tokens in (8192, 40))
    for step in range(2):
        batch = make_batch(step=step, seed=step, lag=step)
        reports = whole.step(batch), split.step(batch)
        for name, value in reports[0].metrics.items():
            assert reports[1].metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
        key = {report.attempt: report for report in reports[1].attempts}
        assert [key[report.attempt].trained for report in reports[0].attempts] == [
            r.trained for r in reports[0].attempts
        ]
    # Muon orthogonalises in bfloat16, which magnifies rounding.
    assert_close(weights(whole), weights(split), 1e-4 if optimizer is SMOOTH else 5e-3)


def test_what_a_sample_teaches_does_not_depend_on_its_neighbours(make_learner, make_batch):
    """The loss of a batch is the token-weighted mean of the losses of its samples alone."""
    batch = make_batch(members=3)
    alone = [make_learner().step(Batch(step=0, samples=[sample])) for sample in batch.samples]
    together = make_learner().step(batch)
    expected = sum(report.metrics["loss"] * report.tokens for report in alone) / together.tokens
    assert together.metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_the_loss_is_divided_by_tokens_counted_before_weights(make_learner, make_batch):
    learner = make_learner(optimizer=SMOOTH, freshness={"alpha": 0.0})
    learner.step(Batch(step=0, samples=[]))
    report = learner.step(make_batch(step=1, lag=1))
    assert report.metrics["weight_mean"] == pytest.approx(2 / 3)
    assert report.metrics["loss"] == pytest.approx(2 / 3 * report.metrics["teacher_kl"], rel=1e-5)


def test_a_sample_too_stale_to_trust_is_masked_and_moves_nothing(make_learner, make_batch):
    learner = make_learner(freshness={"alpha": 0.0, "xi": 0.7})
    learner.step(make_batch())
    before = weights(learner)
    batch = make_batch(step=1, lag=1)
    report = learner.step(batch)
    assert_close(before, weights(learner), 0)
    assert report.tokens == 0 and report.lag_histogram == {}
    for attempt, sample in zip(report.attempts, batch.samples, strict=True):
        assert attempt.trained == 0
        assert attempt.masked == {"freshness": len(sample.segment.trained_rows)}


def test_fresh_samples_are_trusted_wholly(make_learner, make_batch):
    report = make_learner(freshness={"alpha": 100.0}).step(make_batch())
    assert {(attempt.freshness, attempt.rollout_drift) for attempt in report.attempts} == {(1.0, 0.0)}


def test_a_stale_sample_is_trusted_less_the_further_the_student_moved(make_learner, make_batch):
    def freshness_after(lr: float) -> float:
        learner = make_learner(optimizer={"lr": lr})
        learner.step(make_batch())
        return learner.step(make_batch(step=1, lag=1)).metrics["freshness_mean"]

    assert freshness_after(0.1) < freshness_after(0.01) < 2 / 3


def test_unscored_samples_are_masked_and_leave_the_rest_alone(make_learner, make_batch):
    batch = changed(make_batch(), 2, scores=None)
    with_unscored, without = make_learner(), make_learner()
    report = with_unscored.step(batch)
    without.step(Batch(step=0, samples=[sample for sample in batch.samples if sample.attempt != 2]))
    assert_close(weights(with_unscored), weights(without), 1e-6)
    assert report.attempts[2].trained == 0
    assert report.attempts[2].masked == {"unscored": len(batch.samples[2].segment.trained_rows)}


def test_a_step_that_teaches_nothing_still_counts(make_learner, make_batch):
    learner = make_learner(optimizer={"weight_decay": 0.5})
    learner.step(make_batch())
    before = weights(learner)
    batch = make_batch(step=1)
    for index in range(len(batch.samples)):
        batch = changed(batch, index, scores=None)
    report = learner.step(batch)
    assert learner.step_count == 2 and report.tokens == 0
    assert_close(before, weights(learner), 0)


def test_every_generated_token_is_trained_or_masked_for_a_reason(make_learner, make_batch):
    batch = changed(make_batch(), 1, scores=None)
    segment = batch.samples[0].segment
    mask_T = np.where(segment.loss_mask_T == LossMask.CONTEXT, LossMask.OVERDUE, segment.loss_mask_T).astype(np.uint8)
    second = msgspec.structs.replace(
        batch.samples[0], attempt=3, segment=msgspec.structs.replace(segment, loss_mask_T=mask_T)
    )
    batch = msgspec.structs.replace(batch, samples=[*batch.samples, second])
    report = make_learner().step(batch)
    generated = Counter()
    for sample in batch.samples:
        generated[sample.attempt] += len(sample.segment.generated_rows)
    assert {a.attempt: a.trained + sum(a.masked.values()) for a in report.attempts} == generated
    assert report.attempts[3].masked == {"overdue": int((mask_T == LossMask.OVERDUE).sum())}
    assert report.tokens == sum(report.lag_histogram.values()) == sum(a.trained for a in report.attempts)


def test_masked_tokens_and_context_have_no_influence_but_as_context(make_learner, make_batch):
    """Trailing tokens that teach nothing change neither loss nor gradient."""
    batch = make_batch()
    segment = batch.samples[0].segment
    cut = segment.trained_rows[-1] + 1
    fields = ("ids_T", "loss_mask_T", "logp_T", "version_T", "mixed_kv_T", "turn_T")
    shorter = msgspec.structs.replace(segment, **{name: getattr(segment, name)[:cut] for name in fields})
    longer_mask = np.concatenate([shorter.loss_mask_T, [LossMask.INFRASTRUCTURE]]).astype(np.uint8)
    longer = {name: np.append(getattr(shorter, name), getattr(shorter, name)[-1]) for name in fields}
    longer = msgspec.structs.replace(shorter, **(longer | {"loss_mask_T": longer_mask}))
    reports = [make_learner().step(changed(batch, 0, segment=part)) for part in (shorter, longer)]
    assert reports[0].metrics["loss"] == reports[1].metrics["loss"]
    assert reports[0].metrics["grad_norm"] == reports[1].metrics["grad_norm"]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_loss_that_is_not_finite_stops_before_the_update(make_learner, make_batch, bad):
    batch = make_batch()
    scores = batch.samples[4].scores
    logp_RK = scores.logp_RK.copy()
    logp_RK[0, 0] = bad
    poisoned = changed(batch, 4, scores=msgspec.structs.replace(scores, logp_RK=logp_RK))
    learner, undisturbed = make_learner(micro_batch_tokens=40), make_learner(micro_batch_tokens=40)
    before = weights(learner)
    with pytest.raises(NonFiniteLoss, match=r"step 0: the loss is .*attempts \[.*4"):
        learner.step(poisoned)
    assert learner.step_count == 0
    assert_close(before, weights(learner), 0)
    learner.step(batch)
    undisturbed.step(batch)
    assert_close(weights(learner), weights(undisturbed), 0)


def test_a_gradient_that_is_not_finite_stops_before_the_update(make_learner, make_batch):
    learner = make_learner()
    before = weights(learner)
    parameter = next(learner._model.parameters())
    handle = parameter.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(NonFiniteLoss, match="the gradient is"):
        learner.step(make_batch())
    handle.remove()
    assert_close(before, weights(learner), 0)


def test_a_teacher_equal_to_the_student_moves_nothing(make_learner, make_batch, reference):
    batch = make_batch(width=48)
    for index, sample in enumerate(batch.samples):
        segment = sample.segment
        with torch.no_grad():
            logits = reference(input_ids=torch.from_numpy(segment.ids_T).long()[None]).logits[0]
        logp_RV = logits.log_softmax(-1)[segment.trained_rows - 1].numpy()
        ids_RK = np.argsort(-logp_RV, axis=1)
        own = Scores(
            support=Support(kind=SupportKind.TEACHER_TOPK, width=48),
            ids_RK=ids_RK.astype(np.int32),
            logp_RK=np.take_along_axis(logp_RV, ids_RK, axis=1),
        )
        batch = changed(batch, index, scores=own)
    report = make_learner(width=48).step(batch)
    assert report.metrics["grad_norm"] < 1e-5
    assert report.metrics["coverage"] == pytest.approx(1, abs=1e-5)


def test_scores_wider_than_needed_are_narrowed(make_learner, make_batch):
    wide = make_learner(width=4).step(make_batch(width=16))
    narrow = make_learner(width=4).step(make_batch(width=4))
    assert wide.metrics["loss"] == narrow.metrics["loss"]


def test_cross_entropy_is_the_mean_negative_log_likelihood(make_learner, make_batch):
    batch = make_batch()
    logp = np.concatenate([sample.segment.logp_T[sample.segment.trained_rows] for sample in batch.samples])
    demonstrations = Batch(
        step=0,
        samples=[
            msgspec.structs.replace(
                sample,
                scores=None,
                segment=msgspec.structs.replace(sample.segment, version_T=np.full(len(sample.segment), -1)),
            )
            for sample in batch.samples
        ],
    )
    report = make_learner(use="cross_entropy").step(demonstrations)
    assert report.metrics["loss"] == pytest.approx(-logp.mean(), abs=1e-5)
    assert report.lag_histogram == {0: len(logp)}
    assert "ratio_ess" not in report.metrics
