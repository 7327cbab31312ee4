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
    """Return the ids [R, K] of the trained rows that the student chose, `None` where the teacher knows or chooses them.

    Raises `ValueError` if the segment has fewer than the support is wide.
    """
    if support.kind not in (SupportKind.STUDENT_TOPK, SupportKind.DRAWS):
        return None
    ids_RN, _ = segment.candidates(support.kind)
    if ids_RN.shape[1] < support.width:
        raise ValueError(
            f"a segment holds {ids_RN.shape[1]} ids a token for {support.kind}, {support.width} are wanted"
        )
    return ids_RN[:, : support.width]
