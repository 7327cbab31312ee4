"""The uncertainty of a measured share."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share, within [0, 1]; `trials` is at least 1.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    spread = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / spread
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / spread
    return max(0.0, middle - half), min(1.0, middle + half)
