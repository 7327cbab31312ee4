"""How far apart two computations of the same tokens' log-probabilities lie."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

_BINS_PER_DECADE = 20
_LEAST, _MOST = 1e-9, 1e9
"""Nats; what lies beyond is counted as if it were there, and so is what is no number at all, as the most."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """|log π − log μ| of `tokens` tokens: their sum and the greatest, nats, and how many lie in which bin.

    Bin b holds those up to 10^(b/20) and above 10^((b-1)/20). Sums of such records describe all their tokens.
    """

    tokens: int = 0
    total: float = 0.0
    greatest: float = 0.0
    bins: dict[int, int] = {}

    @classmethod
    def of(cls, difference_R: np.ndarray) -> Differences:
        """Describe log π − log μ of R tokens, of either sign."""
        if not len(difference_R):
            return cls()
        size_R = np.nan_to_num(np.abs(difference_R.astype(np.float64)), nan=_MOST).clip(max=_MOST)
        bins, counts = np.unique(np.ceil(_BINS_PER_DECADE * np.log10(size_R.clip(min=_LEAST))), return_counts=True)
        return cls(
            tokens=len(size_R),
            total=float(size_R.sum()),
            greatest=float(size_R.max()),
            bins={int(number): int(count) for number, count in zip(bins, counts, strict=True)},
        )

    def __add__(self, other: Differences) -> Differences:
        return Differences(
            tokens=self.tokens + other.tokens,
            total=self.total + other.total,
            greatest=max(self.greatest, other.greatest),
            bins=dict(sorted((Counter(self.bins) + Counter(other.bins)).items())),
        )

    @property
    def mean(self) -> float:
        """The mean in nats; 0 of no tokens."""
        return self.total / max(1, self.tokens)

    def quantile(self, share: float) -> float:
        """Return what a `share` of the tokens does not exceed, nats, up to 12 % too much; 0 of no tokens."""
        left = share * self.tokens
        for number, count in sorted(self.bins.items()):
            left -= count
            if left <= 0:
                return min(self.greatest, 10.0 ** (number / _BINS_PER_DECADE))
        return self.greatest

    def figures(self) -> dict[str, float | None]:
        """Return `mean`, `p99` and `max` in nats, None where nothing was compared, and `tokens`."""
        if not self.tokens:
            return {"mean": None, "p99": None, "max": None, "tokens": 0}
        return {"mean": self.mean, "p99": self.quantile(0.99), "max": self.greatest, "tokens": self.tokens}
