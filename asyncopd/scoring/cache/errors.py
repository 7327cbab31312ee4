"""What can go wrong with a score cache; neither is ever the end of a run."""

from __future__ import annotations


class CorruptScores(ValueError):
    """A value is truncated, altered, or of an unknown format; its segment is scored again."""


class StoreUnavailable(ConnectionError):
    """A store could not be reached, or refused; the message names the service and the way out."""
