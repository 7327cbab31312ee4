"""CPU time is that of a server's own processes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from asyncopd.bench.cpu import Server, processes_started

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"


@pytest.fixture
def start():
    """Return a function that starts a process which burns 0.3 s of CPU, says so and idles."""
    started = []

    def process():
        started.append(subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE))
        return started[-1]

    yield process
    for one in started:
        one.kill()
        one.communicate()


async def nothing(request):
    return 0


def test_only_processes_started_inside_count(start):
    other = start()
    with processes_started() as processes:
        own = start()
    assert [process.pid for process in processes] == [own.pid]
    server, alone = Server(nothing, processes), Server(nothing, [])
    own.stdout.readline()
    other.stdout.readline()
    assert server.cpu_seconds - alone.cpu_seconds == pytest.approx(0.3, abs=0.15)


def test_this_process_counts_too():
    server = Server(nothing, [])
    before, began = server.cpu_seconds, time.process_time()
    while time.process_time() - began < 0.1:
        pass
    assert server.cpu_seconds - before >= 0.09
