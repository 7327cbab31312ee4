"""How new weights reach the engines."""

from __future__ import annotations

from pathlib import Path

from asyncopd.config.section import Section


class WeightsSection(Section):
    """`weights`: one memory-mapped file on this machine."""

    dir: Path | None = None
    """Where the mapped file lies; by default /dev/shm where it has room, else the run directory."""
