"""One token sequence that the learner can train on as it is."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np

from asyncopd.records.draws import Draws
from asyncopd.records.scores import SupportKind


class LossMask(IntEnum):
    """Values of `Segment.loss_mask_T`. Above `TRAIN`, the reason why a generated token teaches nothing."""

    CONTEXT = 0
    TRAIN = 1
    FRESHNESS = 2
    OVERDUE = 3
    UNSCORED = 4
    INFRASTRUCTURE = 5
    DEMONSTRATED_ERROR = 6

    @property
    def reason(self) -> str:
        """The name used in ledgers, `masked(reason)`."""
        return self.name.lower()


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids with what is known of each; all arrays have length T.

    ids_T       int32   exactly the ids the engine was given and sampled
    loss_mask_T uint8   a `LossMask` value
    logp_T      float32 log μ of a generated token in nats, 0 for context
    version_T   int64   packed version that sampled a generated token, -1 for context
    mixed_kv_T  uint8   1 where part of a generated token's context was computed at another version
    turn_T      int16   index of the turn that brought the token, -1 for the opening prompt
    draws       rows are the generated tokens in order
    routed_experts [T, layers, experts a token] int16, for mixture-of-experts students
    """

    ids_T: np.ndarray
    loss_mask_T: np.ndarray
    logp_T: np.ndarray
    version_T: np.ndarray
    mixed_kv_T: np.ndarray
    turn_T: np.ndarray
    draws: Draws | None = None
    routed_experts: np.ndarray | None = None
    media: list[bytes] | None = None

    def __post_init__(self) -> None:
        lengths = {
            len(array)
            for array in (self.ids_T, self.loss_mask_T, self.logp_T, self.version_T, self.mixed_kv_T, self.turn_T)
        }
        assert len(lengths) == 1, f"the arrays of a segment differ in length: {sorted(lengths)}"

    def __len__(self) -> int:
        return len(self.ids_T)

    @property
    def generated_rows(self) -> np.ndarray:
        """Positions an engine sampled, rising."""
        return np.flatnonzero(self.loss_mask_T != LossMask.CONTEXT)

    @property
    def trained_rows(self) -> np.ndarray:
        """Positions that teach, rising; row t is predicted from position t - 1."""
        return np.flatnonzero(self.loss_mask_T == LossMask.TRAIN)

    def candidates(self, kind: SupportKind) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int32 and log μ float32 that the student chose for its trained rows, both [R, N].

        For `sampled` the generated token; for `student_topk` the head; for `draws` head, tail, and the
        generated token with the i.i.d. draws, of which it is one, as far as the segment has them. For other
        kinds, which the teacher chooses, N = 0.
        """
        rows = self.generated_rows
        generated = self.ids_T[rows, None], self.logp_T[rows, None]
        draws = self.draws or Draws()
        head = draws.head_ids_RK, draws.head_logp_RK
        tail = draws.tail_ids_RM, draws.tail_logp_RM
        iid = draws.iid_ids_RM, draws.iid_logp_RM
        parts: dict[SupportKind, list[tuple[np.ndarray | None, np.ndarray | None]]] = {
            SupportKind.SAMPLED: [generated],
            SupportKind.STUDENT_TOPK: [head],
            SupportKind.DRAWS: [head, tail, *([] if draws.iid_ids_RM is None else [generated, iid])],
        }
        chosen = parts.get(kind, [])
        kept = np.isin(rows, self.trained_rows)
        ids = [np.empty((len(rows), 0), np.int32), *(ids_RN for ids_RN, _ in chosen if ids_RN is not None)]
        logp = [np.empty((len(rows), 0), np.float32), *(logp_RN for _, logp_RN in chosen if logp_RN is not None)]
        return np.concatenate(ids, axis=1)[kept], np.concatenate(logp, axis=1)[kept]
