"""What a teacher reads and is asked, from what the student lived."""

from __future__ import annotations

import numpy as np

from asyncopd.records import ScoreRequest, Segment, Support, SupportKind, Trajectory


def student_view(trajectory: Trajectory, support: Support, temperature: float) -> list[ScoreRequest]:
    """Return a request a segment, for a teacher that reads exactly what the student did."""
    return [
        ScoreRequest(
            context_ids_C=segment.ids_T,
            scored_ids_R=segment.ids_T[segment.trained_rows],
            row_map_R=segment.trained_rows.astype(np.int32),
            support=support,
            candidate_ids_RK=candidates(segment, support),
            temperature=temperature,
        )
        for segment in trajectory.segments
    ]


def candidates(segment: Segment, support: Support) -> np.ndarray | None:
    """Return the ids [R, K] of the trained rows that the student chose, `None` where it chose none.

    `student_topk` takes the head of μ; `draws` the generated id, then the independent draws. Raises
    `ValueError` if the segment has fewer than the support is wide.
    """
    if support.kind not in (SupportKind.STUDENT_TOPK, SupportKind.DRAWS):
        return None
    trained = np.isin(segment.generated_rows, segment.trained_rows)
    draws = segment.draws
    if support.kind is SupportKind.STUDENT_TOPK:
        known_RK = None if draws is None else draws.head_ids_RK
    else:
        known_RK = None if draws is None else draws.iid_ids_RM
        if known_RK is not None:
            known_RK = np.concatenate([segment.ids_T[segment.generated_rows, None], known_RK], axis=1)
    if known_RK is None or known_RK.shape[1] < support.width:
        held = 0 if known_RK is None else known_RK.shape[1]
        raise ValueError(f"a segment holds {held} ids a token for {support.kind}, {support.width} are wanted")
    return known_RK[trained, : support.width].astype(np.int32)
