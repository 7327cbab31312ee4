"""The small record that a finished trajectory leaves with the scheduler."""

from __future__ import annotations

import numpy as np

from asyncopd.records import LossMask, TokenCounts, Trajectory, TrajectoryMeta
from asyncopd.records.version import steps_of


def summarise(trajectory: Trajectory, group: int, payload: str) -> TrajectoryMeta:
    """Return what the scheduler needs to know; an attempt that sampled nothing has steps 0."""
    mask_T = np.concatenate([np.empty(0, np.uint8), *(segment.loss_mask_T for segment in trajectory.segments)])
    version_T = np.concatenate([np.empty(0, np.int64), *(segment.version_T for segment in trajectory.segments)])
    generated_T = mask_T != LossMask.CONTEXT
    steps_R = steps_of(version_T[generated_T])
    masked = {
        code.reason: int(np.count_nonzero(mask_T == code))
        for code in LossMask
        if code > LossMask.TRAIN and np.any(mask_T == code)
    }
    return TrajectoryMeta(
        attempt=trajectory.attempt,
        task=trajectory.task.id,
        domain=trajectory.task.domain,
        group=group,
        tokens=TokenCounts(
            prompt=int(np.count_nonzero(~generated_T)),
            trainable=int(np.count_nonzero(mask_T == LossMask.TRAIN)),
            masked=masked,
        ),
        first_step=int(steps_R.min()) if len(steps_R) else 0,
        last_step=int(steps_R.max(initial=0)),
        mean_step=float(steps_R.mean()) if len(steps_R) else 0.0,
        reward=trajectory.reward,
        outcome=trajectory.outcome,
        payload=payload,
    )
