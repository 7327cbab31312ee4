"""When nothing happens, the run says who waits on whom, engines included."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

from support.mortal_engine import MortalEngine

from asyncopd.engines.fleet import Fleet
from asyncopd.runtime.watchdog import watch


async def test_a_silence_names_scheduler_and_engines() -> None:
    fleet = Fleet("student", {})
    fleet.join(MortalEngine("student-0"))
    fleet.coming[1] = "student-1.1 starts"
    scheduler = SimpleNamespace(waiting=lambda: ["step 3 waits for attempts 7 (rolling)"])
    loop = SimpleNamespace(scheduler=scheduler, last_event=time.monotonic() - 10)
    warnings: asyncio.Queue[str] = asyncio.Queue()
    watching = asyncio.create_task(watch(loop, fleet, 5.0, warnings.put_nowait))
    assert await asyncio.wait_for(warnings.get(), 5) == (
        "no event for 10 s: step 3 waits for attempts 7 (rolling); "
        "engines: student-0 serves 0.0 to 0 requests; student-1.1 starts"
    )
    watching.cancel()
