"""Extra tokens per position from the behaviour policy.

Shapes: R generated tokens, K head entries, M draws, N entries of all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class DrawSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Extra ids wanted per generated token: TopK(μ), draws from its tail, i.i.d. draws."""

    head: int = 0
    tail: int = 0
    iid: int = 0

    @property
    def width(self) -> int:
        return self.head + self.tail + self.iid

    def covers(self, other: DrawSpec) -> bool:
        """Whether who gives these can give `other`."""
        return self.head >= other.head and self.tail >= other.tail and self.iid >= other.iid


NO_DRAWS = DrawSpec()


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids from the behaviour policy μ beside the one generated, with their log μ.

    ids int32, log μ float32. `head` holds TopK(μ) in falling order; `tail` holds draws from μ given not in
    the head; `iid` holds independent draws from μ. Log-probabilities are those of μ itself (never
    renormalised over the tail), in nats. A position whose head holds all the probability has no tail to
    draw from: there the tail's ids repeat the head's first, with log μ = -inf.
    """

    head_ids_RK: np.ndarray | None = None
    head_logp_RK: np.ndarray | None = None
    tail_ids_RM: np.ndarray | None = None
    tail_logp_RM: np.ndarray | None = None
    iid_ids_RM: np.ndarray | None = None
    iid_logp_RM: np.ndarray | None = None

    @classmethod
    def split(cls, spec: DrawSpec, ids_RN: np.ndarray, logp_RN: np.ndarray) -> Draws:
        """Return the draws whose entries lie side by side: head, tail, i.i.d."""
        tail, iid = spec.head, spec.head + spec.tail
        return cls(
            head_ids_RK=ids_RN[:, :tail] if spec.head else None,
            head_logp_RK=logp_RN[:, :tail] if spec.head else None,
            tail_ids_RM=ids_RN[:, tail:iid] if spec.tail else None,
            tail_logp_RM=logp_RN[:, tail:iid] if spec.tail else None,
            iid_ids_RM=ids_RN[:, iid : spec.width] if spec.iid else None,
            iid_logp_RM=logp_RN[:, iid : spec.width] if spec.iid else None,
        )

    @classmethod
    def lost(cls, spec: DrawSpec, rows: int) -> Draws:
        """Return what stands for the draws of `rows` tokens that were lost: id 0, log μ = -inf."""
        ids_RN = np.zeros((rows, spec.width), np.int32)
        return cls.split(spec, ids_RN, np.full(ids_RN.shape, -np.inf, np.float32))

    @classmethod
    def join(cls, parts: Sequence[Draws]) -> Draws:
        """Return the rows of several draws of the same kinds and widths, in order."""
        columns: dict[str, np.ndarray | None] = {}
        for field in cls.__struct_fields__:
            arrays = [getattr(part, field) for part in parts]
            columns[field] = None if arrays[0] is None else np.concatenate(arrays)
        return cls(**columns)

    @property
    def count(self) -> int:
        """R."""
        return next(len(array) for field in self.__struct_fields__ if (array := getattr(self, field)) is not None)

    def rows(self, start: int, end: int) -> Draws:
        """Return the draws of tokens `start` to `end`, without the last."""
        arrays = {field: getattr(self, field) for field in self.__struct_fields__}
        return Draws(**{field: None if array is None else array[start:end] for field, array in arrays.items()})
