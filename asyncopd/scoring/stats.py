"""What the scoring service counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ScoringStats:
    """Counters since the start. Segments: hits, misses, shared (joined one in flight), retries, unscored."""

    hits: int = 0
    misses: int = 0
    shared: int = 0
    retries: int = 0
    unscored: int = 0
    bytes: int = 0
    """Encoded bytes read from and written to the store."""
    teacher_tokens: int = 0
    """Context tokens the teacher read, further tries included."""
    teacher_seconds: float = 0.0
    store_errors: int = 0
    corrupt: int = 0
    """Values that were found damaged and scored again."""
