"""One token sequence that the learner can train on as it is."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np

from asyncopd.records.draws import Draws


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
