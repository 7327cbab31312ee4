"""Teacher log-probabilities of a segment at a support."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np


class SupportKind(StrEnum):
    """Which token ids the teacher is asked about at each scored position."""

    TEACHER_TOPK = "teacher_topk"
    STUDENT_TOPK = "student_topk"
    DRAWS = "draws"
    SAMPLED = "sampled"
    HIDDEN = "hidden"


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """A support: its kind and its width, the entries a scored position has (1 for `sampled`)."""

    kind: SupportKind
    width: int = 1

    def contains(self, other: Support) -> bool:
        """Whether scores at this support answer a request for `other` of the same segment."""
        return self.kind == other.kind and self.width >= other.width


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a teacher is asked, in its own token sequence.

    Shapes: C teacher-side context tokens, R scored rows, K entries a row.
    context_ids_C   int32 the sequence the teacher reads; for a privileged teacher not the student's
    scored_ids_R    int32 the student's generated ids
    row_map_R       int32 index into `context_ids_C` of each scored id; its distribution is the one after
                    position `row_map_R - 1`
    candidate_ids_RK int32 the ids asked about, for kinds where the student chooses them
    temperature     the teacher's; log-probs are those of softmax(logits / temperature)
    """

    context_ids_C: np.ndarray
    scored_ids_R: np.ndarray
    row_map_R: np.ndarray
    support: Support
    candidate_ids_RK: np.ndarray | None = None
    temperature: float = 1.0

    @property
    def asked_ids_RK(self) -> np.ndarray | None:
        """The ids that an answer must be about, None where the teacher chooses them."""
        return self.scored_ids_R[:, None] if self.support.kind is SupportKind.SAMPLED else self.candidate_ids_RK


def tail_of(logp_RK: np.ndarray) -> np.ndarray:
    """Return the log of the mass outside distinct ids of these log-probs, float32; -inf where nothing is left."""
    with np.errstate(divide="ignore"):
        return np.log1p(-np.exp(logp_RK, dtype=np.float64).sum(axis=1).clip(max=1)).astype(np.float32)


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """A teacher's answer: natural log-probabilities, at most 0.

    ids_RK int32, logp_RK float32; for `teacher_topk` each row falls. tail_R float32 is the log of the mass outside
    the support, which a sum of rounded log-probs would not give back; None for kinds whose ids may repeat.
    """

    support: Support
    ids_RK: np.ndarray
    logp_RK: np.ndarray
    tail_R: np.ndarray | None = None

    def narrowed(self, support: Support) -> Scores:
        """Return these scores at a contained support."""
        assert self.support.contains(support), f"{support} is not contained in {self.support}"
        width = support.width
        tail_R = self.tail_R
        if tail_R is not None and width < self.support.width:
            tail_R = np.logaddexp(tail_R, np.logaddexp.reduce(self.logp_RK[:, width:], axis=1))
        return Scores(support=support, ids_RK=self.ids_RK[:, :width], logp_RK=self.logp_RK[:, :width], tail_R=tail_R)
