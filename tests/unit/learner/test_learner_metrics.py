"""What a step reports of engine, lag and ratio."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from asyncopd.records import Batch, LossMask, Version


def edited(batch: Batch, edit) -> Batch:
    """Return the batch with each segment's arrays edited in copies."""
    samples = []
    for sample in batch.samples:
        arrays = {name: getattr(sample.segment, name).copy() for name in ("logp_T", "version_T", "mixed_kv_T")}
        edit(arrays, sample.segment.loss_mask_T == LossMask.TRAIN)
        samples.append(msgspec.structs.replace(sample, segment=msgspec.structs.replace(sample.segment, **arrays)))
    return msgspec.structs.replace(batch, samples=samples)


def test_an_engine_with_the_learners_weights_agrees_to_rounding(make_learner, make_batch):
    metrics = make_learner().step(make_batch()).metrics
    assert metrics["logprob_diff_mean"] < 1e-5 and metrics["logprob_diff_max"] < 1e-4
    assert metrics["ratio_ess"] == pytest.approx(1, abs=1e-4)
    assert metrics["log_ratio_abs_mean"] < 1e-5 and metrics["ratio_held_share"] == 0


def test_the_difference_is_measured_at_the_sampling_temperature(make_learner, make_batch):
    assert make_learner(temperature=2.0).step(make_batch()).metrics["logprob_diff_mean"] > 0.1
    assert make_learner(distill_temperature=2.0).step(make_batch()).metrics["logprob_diff_mean"] < 1e-5


def test_tokens_of_mixed_or_older_weights_do_not_count_as_differences(make_learner, make_batch):
    def spoil_some(arrays, trained_T):
        spoiled = np.flatnonzero(trained_T)[1:]
        arrays["logp_T"][spoiled] -= 3.0
        arrays["mixed_kv_T"][spoiled] = 1

    metrics = make_learner().step(edited(make_batch(), spoil_some)).metrics
    assert metrics["logprob_diff_max"] < 1e-4
    assert metrics["log_ratio_abs_mean"] > 1
    assert metrics["logprob_diff_mixed_mean"] == pytest.approx(3.0, abs=1e-3)

    learner = make_learner()
    learner.step(Batch(step=0, samples=[]))
    assert "logprob_diff_mean" not in learner.step(make_batch(step=1, lag=1)).metrics


def test_quantiles_of_the_difference_are_of_single_tokens(make_learner, make_batch):
    def spoil_one(arrays, trained_T):
        arrays["logp_T"][np.flatnonzero(trained_T)[0]] -= 2.0

    batch = make_batch()
    first = edited(Batch(step=0, samples=batch.samples[:1]), spoil_one).samples
    metrics = make_learner().step(Batch(step=0, samples=[*first, *batch.samples[1:]])).metrics
    tokens = sum(len(sample.segment.trained_rows) for sample in batch.samples)
    assert metrics["logprob_diff_max"] == pytest.approx(2.0, abs=1e-3)
    assert metrics["logprob_diff_mean"] == pytest.approx(2.0 / tokens, abs=1e-3)


def test_equal_steps_of_another_timeline_are_other_weights_but_those_it_began_with(make_learner, make_batch, tmp_path):
    first = make_learner()
    first.step(Batch(step=0, samples=[]))
    first.save(tmp_path / "step-1")
    resumed = make_learner(timeline=1)
    resumed.restore(tmp_path / "step-1")

    def all_trained(batch):
        return sum(len(sample.segment.trained_rows) for sample in batch.samples)

    began, later = make_batch(step=1), make_batch(step=2)
    assert resumed.step(began).agreement.tokens == all_trained(began)
    assert resumed.step(later).agreement.tokens == 0

    def resampled(arrays, trained_T):
        arrays["version_T"][trained_T] = Version(1, 3).pack()

    later = edited(make_batch(step=3), resampled)
    assert resumed.step(later).agreement.tokens == all_trained(later)


def test_a_report_compares_all_its_tokens(make_learner, make_batch):
    def mix_the_first(arrays, trained_T):
        arrays["mixed_kv_T"][np.flatnonzero(trained_T)[0]] = 1

    batch = make_batch()
    report = make_learner().step(edited(batch, mix_the_first))
    assert (report.agreement.tokens, report.mixed.tokens) == (report.tokens - len(batch.samples), len(batch.samples))
    assert report.agreement.mean == pytest.approx(report.metrics["logprob_diff_mean"], rel=1e-6)
    assert report.agreement.greatest == pytest.approx(report.metrics["logprob_diff_max"], rel=1e-6)


def test_segments_are_compared_with_the_weights_as_they_are_and_leave_them_so(make_learner, make_batch):
    learner = make_learner(micro_batch_tokens=64)
    batch = make_batch()
    segments = [sample.segment for sample in batch.samples]
    tokens = sum(len(segment.trained_rows) for segment in segments)
    before = dict(learner.named_tensors())
    found = learner.compare(segments)
    assert found.tokens == tokens and found.greatest < 1e-4
    assert all((tensor == before[name]).all() for name, tensor in learner.named_tensors())
    learner.step(batch)
    assert learner.compare(segments).tokens == 0  # they are of the version before
    resampled = [sample.segment for sample in make_batch(step=1).samples]
    found = learner.compare(resampled)
    assert found.tokens == tokens and found.mean > 1e-4  # the step moved the weights


def test_a_ratio_beyond_its_limit_is_counted(make_learner, make_batch):
    def spoil(arrays, trained_T):
        arrays["logp_T"][trained_T] -= 30.0

    assert make_learner().step(edited(make_batch(), spoil)).metrics["ratio_held_share"] > 0.9


def test_lags_are_counted_in_steps_across_timelines(make_learner, make_batch):
    def first_is_older(arrays, trained_T):
        rows = np.flatnonzero(trained_T)
        arrays["version_T"][rows] = Version(3, 2).pack()
        arrays["version_T"][rows[0]] = Version(1, 1).pack()

    learner = make_learner()
    for step in range(2):
        learner.step(Batch(step=step, samples=[]))
    batch = edited(make_batch(step=2), first_is_older)
    report = learner.step(batch)
    assert report.lag_histogram == {0: report.tokens - len(batch.samples), 1: len(batch.samples)}
    for attempt in report.attempts:
        assert attempt.lag_max == 1
        assert attempt.lag_mean == pytest.approx(1 / attempt.trained)


def test_mismatch_at_lag_zero_is_not_taken_for_drift(make_learner, make_batch):
    """An engine that is off by a constant makes nothing look stale."""

    def off(arrays, trained_T):
        arrays["logp_T"][trained_T] -= 0.2

    still = {"lr": 1e-12}
    aware, unaware = make_learner(optimizer=still), make_learner(optimizer=still)
    aware.step(edited(make_batch(), off))
    unaware.step(Batch(step=0, samples=[]))
    batch = edited(make_batch(step=1, lag=1), off)
    aware_drifts, unaware_drifts = (
        [a.rollout_drift for a in learner.step(batch).attempts] for learner in (aware, unaware)
    )
    assert max(aware_drifts) < 1e-4 < 1e-2 < min(unaware_drifts)


def test_entropy_is_that_of_the_student(make_learner, make_batch):
    assert 0 < make_learner().step(make_batch()).metrics["entropy"] < np.log(48)
