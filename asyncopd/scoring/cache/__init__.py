"""Teacher scores, kept: content-addressed, persistent, safe to lose."""

from asyncopd.scoring.cache.errors import CorruptScores, StoreUnavailable
from asyncopd.scoring.cache.open import check, open_store

__all__ = ["CorruptScores", "StoreUnavailable", "check", "open_store"]
