"""Each limit holds, whatever a program does against it, and the result says which one ended it."""

from __future__ import annotations

import asyncio

import pytest
from support.boxes import alive, until, use

from asyncopd.sandbox import Limits, Sandbox, Strength
from asyncopd.seams import DeadlineExceeded

pytestmark = pytest.mark.integration

QUICK = Limits(wall_s=0.6, cpu_s=1, memory_mib=96, processes=8, files=40, disk_mib=2, output_kib=8)


@pytest.mark.parametrize(
    "program",
    [
        "print('here')\nwhile True: pass",
        "print('here')\nimport time\ntime.sleep(60)",
        "print('here')\nimport signal, time\n"
        "for n in (1, 2, 3, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "print('here')\nimport os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["burns", "sleeps", "ignores signals", "stops itself"],
)
async def test_a_program_that_does_not_end_is_ended(any_strength: Strength, program: str) -> None:
    async with Sandbox(QUICK) as box:
        result = await box.run(program)
    assert (result.ended, result.stdout) == ("timeout", "here\n") and result.exit_code < 0
    assert result.seconds < 3


async def test_seconds_of_a_core_are_counted_apart_from_those_on_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use("namespaces", monkeypatch)
    async with Sandbox(QUICK.model_copy(update={"wall_s": 60})) as box:
        result = await box.run("while True: pass")
    assert result.ended == "timeout" and result.exit_code == -24  # SIGXCPU


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(1 << 30)",
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0: break\nx = b'x' * (40 << 20)\ntime.sleep(5)",
    ],
    ids=["at once", "by several processes"],
)
async def test_memory_is_limited(any_box: Sandbox, program: str) -> None:
    assert (await any_box.run(program)).ended == "memory"


async def test_a_flood_of_output_is_cut_and_ends_the_program(any_box: Sandbox) -> None:
    result = await any_box.run("import sys\nwhile True: sys.stderr.write('x' * 4096)")
    assert result.ended == "output" and result.stderr == "x" * 8192 + "\n[cut after 8 KiB]"


async def test_output_up_to_the_limit_is_whole(any_box: Sandbox) -> None:
    result = await any_box.run("print('x' * 8191)")
    assert result.ok and len(result.stdout) == 8192


async def test_a_fork_bomb_stays_small_and_leaves_nothing(any_box: Sandbox) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = await asyncio.wait_for(any_box.run(["python3", "-c", bomb, "bomb-1618"]), 30)
    assert result.ended == "processes"
    assert not alive("bomb-1618")


async def test_threads_count_as_processes(any_box: Sandbox) -> None:
    program = "import threading, time\nfor _ in range(30): threading.Thread(target=time.sleep, args=(1,)).start()"
    result = await any_box.run(program)
    assert result.ended == "processes" or "can't start new thread" in result.stderr


async def test_processes_up_to_the_limit_may_work(any_box: Sandbox) -> None:
    program = "import os, time\nfor _ in range(7):\n    if os.fork() == 0: time.sleep(0.2); os._exit(0)\n"
    result = await any_box.run(program + "for _ in range(7): os.wait()\nprint('done')")
    assert result.ok and result.stdout == "done\n"


async def test_a_daemon_dies_with_its_program(any_box: Sandbox) -> None:
    daemon = (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execlp('sleep', 'sleep', '14.1421')"
    )
    assert (await any_box.run(daemon)).ended == "finished"
    assert not alive("14.1421")


@pytest.mark.parametrize("place", [".", "/tmp"])
async def test_the_disk_cannot_be_filled(walled: Sandbox, place: str) -> None:
    program = f"""
import os
written = 0
try:
    for number in range(9):
        with open({place!r} + f"/{{number}}", "wb") as file:
            while True:
                written += file.write(bytes(1 << 16))
                file.flush()
                if written % (1 << 20) == 0: break
except OSError as error:
    print(written <= 3 << 20, error.strerror)
"""
    assert (await walled.run(program)).stdout == "True No space left on device\n"
    assert sum(map(len, walled.files.values())) <= 2 << 20


async def test_one_file_cannot_fill_the_disk_even_without_walls(any_box: Sandbox) -> None:
    result = await any_box.run("with open('x', 'wb') as file:\n    while True: file.write(bytes(1 << 16))")
    assert "No space left" in result.stderr or "File too large" in result.stderr


async def test_files_are_counted(walled: Sandbox) -> None:
    result = await walled.run("import time\nfor n in range(200): open(str(n), 'w').close()\ntime.sleep(5)")
    assert result.ended == "files"
    assert len(walled.files) <= 40
    assert (await walled.run("print('goes on')")).stdout == "goes on\n"


async def test_a_hole_as_large_as_a_file_may_be_is_not_kept_beyond_the_disk(any_box: Sandbox) -> None:
    program = "for n in range(9):\n    with open(str(n), 'wb') as file: file.truncate(1 << 20)"
    assert (await any_box.run(program)).ok
    assert sum(map(len, any_box.files.values())) <= 2 << 20
    assert (await any_box.run("print('goes on')")).stdout == "goes on\n"


async def test_folders_however_deep_neither_break_nor_stay(any_box: Sandbox) -> None:
    program = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', 'w').close()"
    result = await any_box.run(program)
    assert result.ended in ("files", "finished") and list(any_box.files) == ["main.py"]


async def test_the_callers_deadline_is_an_error_and_ends_the_program(any_box: Sandbox) -> None:
    deadline = asyncio.get_running_loop().time() + 0.5
    with pytest.raises(DeadlineExceeded):
        await any_box.run(["sleep", "31.4159"], deadline=deadline)
    assert not alive("31.4159")
    assert (await any_box.run("print(1)")).ok


async def test_a_cancelled_run_leaves_no_process(any_box: Sandbox) -> None:
    program = "import os, subprocess\nsubprocess.Popen(['setsid', 'sleep', '27.1828'])\nos.system('sleep 27.1828')"
    task = asyncio.create_task(any_box.run(program))
    await until(lambda: alive("27.1828"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive("27.1828")
