"""Says who waits on whom when nothing has happened for too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from asyncopd.engines.fleet import Fleet
from asyncopd.runtime.run_loop import RunLoop


async def watch(loop: RunLoop, fleet: Fleet, patience_s: float, warn: Callable[[str], None]) -> None:
    """Warn each time `patience_s` seconds pass without an event; runs until cancelled."""
    while True:
        quiet = time.monotonic() - loop.last_event
        if quiet >= patience_s:
            waiting = "; ".join(loop.scheduler.waiting()) or "nothing is waited for"
            warn(f"no event for {quiet:.0f} s: {waiting}; engines: {'; '.join(fleet.describe())}")
            quiet = 0.0
        await asyncio.sleep(patience_s - quiet)
