"""The scheduler's record counts what the trajectory holds."""

from __future__ import annotations

import numpy as np

from asyncopd.records import LossMask, Outcome, Segment, Task, Trajectory, Version
from asyncopd.rollout.summary import summarise

TASK = Task(id="cup", domain="shop", data={})


def segment(mask: list[int], steps: list[int]) -> Segment:
    length = len(mask)
    version_T = [
        -1 if code == LossMask.CONTEXT else Version(2, step).pack() for code, step in zip(mask, steps, strict=True)
    ]
    return Segment(
        ids_T=np.arange(length, dtype=np.int32),
        loss_mask_T=np.array(mask, np.uint8),
        logp_T=np.zeros(length, np.float32),
        version_T=np.array(version_T, np.int64),
        mixed_kv_T=np.zeros(length, np.uint8),
        turn_T=np.zeros(length, np.int16),
    )


def trajectory(*segments: Segment) -> Trajectory:
    return Trajectory(
        task=TASK, attempt=5, prompt=[], segments=list(segments), turns=[], outcome=Outcome.SUCCESS, reward=0.5
    )


def test_tokens_are_counted_by_fate_and_steps_over_what_was_sampled() -> None:
    error = LossMask.DEMONSTRATED_ERROR
    meta = summarise(trajectory(segment([0, 1, 1, error], [0, 3, 4, 4]), segment([0, 0, 1], [0, 0, 9])), 8, "key")
    assert (meta.tokens.prompt, meta.tokens.trainable, meta.tokens.masked) == (3, 3, {"demonstrated_error": 1})
    assert meta.tokens.generated == 4
    assert (meta.first_step, meta.last_step, meta.mean_step) == (3, 9, 5.0)
    assert (meta.attempt, meta.task, meta.domain, meta.group, meta.payload) == (5, "cup", "shop", 8, "key")
    assert (meta.reward, meta.outcome) == (0.5, Outcome.SUCCESS)


def test_attempt_that_sampled_nothing_has_nothing_to_train() -> None:
    meta = summarise(trajectory(), 0, "key")
    assert (meta.tokens.generated, meta.first_step, meta.last_step, meta.mean_step) == (0, 0, 0, 0.0)
