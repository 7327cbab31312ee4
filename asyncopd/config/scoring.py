"""How teacher scores are obtained and kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class ScoringSection(Section):
    """`scoring`: the service between rollouts and the learner, and its cache."""

    cache: str = Field("embedded", pattern=r"^(embedded|memory|off|rediss?://.+|unix://.+)$")
    """`embedded` (a Valkey server of the run's own), `memory`, `off`, or a Redis URL."""

    cache_mib: int = Field(256, ge=1)
    """Memory budget of `embedded` and `memory`, MiB; the least recently used go first."""

    cache_bits: Literal[8, 16] = 16
    """Bits of a log-prob in the cache: 16 err by 4.9e-4 nat at most; 8 by 3.9e-3, for `teacher_topk` only."""

    namespace: str = Field("asyncopd", min_length=1)
    """Prefix of all keys."""

    max_batch: int = Field(32, ge=1)
    """Segments scored together."""

    timeout_s: float = Field(300, gt=0)
    """Seconds the teacher may take for one batch."""

    max_retries: int = Field(2, ge=0)
    """Further tries before the tokens of a segment are masked as unscored."""
