"""What a step computes for one sample: the part of it that teaches.

Shapes: T tokens the model reads, R trained rows, K support entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from asyncopd.objectives.needs import Needs
from asyncopd.records import Sample, Version, tail_of
from asyncopd.records.version import steps_of


@dataclass(frozen=True)
class Member:
    """A sample's trained rows.

    ids_T             int64 tokens up to the last trained row, which itself is only predicted
    rows_R            int64 positions of the trained tokens
    targets_R         int64 their ids
    behaviour_R       float32 log μ, 0 where the objective knows none
    lag_R             int64 optimizer steps since the version that sampled them, 0 where no version is known
    exact_R           bool, whether the learner's weights sampled it, over a context computed with them too
    mixed_R           bool, whether they sampled it over a context that older ones computed part of
    support_ids_RK    int64, teacher_RK float32 log T; K = 0 where no teacher is asked
    teacher_tail_R    float32 log of T's mass outside these ids, where they are distinct
    behaviour_RK      float32 log μ at these ids; K = 0 where the teacher chose them
    """

    attempt: int
    ids_T: np.ndarray
    rows_R: np.ndarray
    targets_R: np.ndarray
    behaviour_R: np.ndarray
    lag_R: np.ndarray
    exact_R: np.ndarray
    mixed_R: np.ndarray
    support_ids_RK: np.ndarray
    teacher_RK: np.ndarray
    teacher_tail_R: np.ndarray
    behaviour_RK: np.ndarray

    def __len__(self) -> int:
        return len(self.rows_R)


def member_of(sample: Sample, needs: Needs, step: int, timeline: int | None = None) -> Member | None:
    """Return what optimizer step `step` computes for `sample`; None where it teaches nothing or lacks its scores.

    Of versions of that step, those of `timeline` are the learner's weights, by default those of all timelines.
    """
    segment = sample.segment
    rows_R = segment.trained_rows
    scores = sample.scores
    if not len(rows_R) or (needs.support is not None and scores is None):
        return None
    assert rows_R[0] > 0, f"attempt {sample.attempt}: a segment's first token has no context to be predicted from"
    support_ids_RK = np.zeros((len(rows_R), 0), dtype=np.int64)
    teacher_RK = behaviour_RK = np.zeros((len(rows_R), 0), dtype=np.float32)
    teacher_tail_R = np.zeros(len(rows_R), dtype=np.float32)
    if needs.support is not None and scores is not None:
        scores = scores.narrowed(needs.support)
        support_ids_RK, teacher_RK = scores.ids_RK.astype(np.int64), scores.logp_RK
        teacher_tail_R = tail_of(teacher_RK) if scores.tail_R is None else scores.tail_R
        assert len(teacher_RK) == len(rows_R), f"attempt {sample.attempt}: {len(teacher_RK)} scores, {len(rows_R)} rows"
        ids_RK, behaviour_RK = (part[:, : needs.support.width] for part in segment.candidates(needs.support.kind))
        assert not ids_RK.size or (ids_RK == scores.ids_RK).all(), f"attempt {sample.attempt}: scores of other ids"
    behaviour_R = segment.logp_T[rows_R]
    version_R = segment.version_T[rows_R]
    lag_R = step - steps_of(version_R)
    same_R = lag_R == 0 if timeline is None else version_R == Version(timeline, step).pack()
    if not needs.behaviour:
        behaviour_R, lag_R, same_R = np.zeros_like(behaviour_R), np.zeros_like(lag_R), np.zeros_like(same_R)
    mixed_R = segment.mixed_kv_T[rows_R] != 0
    return Member(
        attempt=sample.attempt,
        ids_T=segment.ids_T[: rows_R[-1]].astype(np.int64),
        rows_R=rows_R,
        targets_R=segment.ids_T[rows_R].astype(np.int64),
        behaviour_R=behaviour_R,
        lag_R=lag_R,
        exact_R=same_R & ~mixed_R,
        mixed_R=same_R & mixed_R,
        support_ids_RK=support_ids_RK,
        teacher_RK=teacher_RK,
        teacher_tail_R=teacher_tail_R,
        behaviour_RK=behaviour_RK,
    )


def joined(arrays_R: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    """Return arrays of several members end to end, on the device."""
    return torch.from_numpy(np.concatenate(arrays_R)).to(device)
