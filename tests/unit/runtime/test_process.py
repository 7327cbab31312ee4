"""A role's process runs calls in order; its death or delay is an error, never a hang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from asyncopd.runtime.process import WorkerLost, WorkerProcess

_calls: list[int] = []


def _record(number: int) -> list[int]:
    _calls.append(number)
    return list(_calls)


def _divide(numerator: int, denominator: int) -> float:
    return numerator / denominator


@pytest.fixture
async def worker():
    worker = await WorkerProcess.start("test", 1)
    yield worker
    await worker.close()


async def test_calls_run_in_the_order_submitted_and_keep_state(worker):
    results = await asyncio.gather(*(worker.call(_record, number, timeout_s=30) for number in range(10)))
    assert results[-1] == list(range(10))


async def test_what_a_call_raises_reaches_the_caller_and_the_process_lives_on(worker):
    with pytest.raises(ZeroDivisionError):
        await worker.call(_divide, 1, 0, timeout_s=30)
    assert await worker.call(_divide, 1, 2, timeout_s=30) == 0.5


async def test_a_call_past_its_deadline_kills_the_process_and_says_so(worker):
    with pytest.raises(WorkerLost, match=r"the test process took over 0.2 s in sleep"):
        await worker.call(time.sleep, 60, timeout_s=0.2)
    with pytest.raises(WorkerLost, match="died"):
        await worker.call(_divide, 1, 2, timeout_s=30)


async def test_closing_gives_a_call_under_way_up():
    worker = await WorkerProcess.start("test", 1)
    waiting = asyncio.create_task(worker.call(time.sleep, 60, timeout_s=60))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(worker.close(), 10)
    with pytest.raises(WorkerLost):
        await waiting


async def test_a_killed_process_is_reported_at_once(worker):
    waiting = asyncio.create_task(worker.call(time.sleep, 60, timeout_s=60))
    await asyncio.sleep(0.1)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="the test process died in sleep"):
        await asyncio.wait_for(waiting, 10)


async def test_the_process_ignores_interrupts(worker):
    os.kill(worker.pid, signal.SIGINT)
    assert await worker.call(_divide, 1, 2, timeout_s=30) == 0.5


def test_the_process_ends_with_a_parent_that_was_killed():
    code = (
        "import asyncio, time\nfrom asyncopd.runtime.process import WorkerProcess\n"
        "async def main():\n    worker = await WorkerProcess.start('test', 1)\n"
        "    print(worker.pid, flush=True)\n    await worker.call(time.sleep, 60, timeout_s=60)\n"
        "if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    child.wait(timeout=10)
    assert not child.is_running()
