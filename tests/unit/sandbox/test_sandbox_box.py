"""Programs run in a box as they would outside, and what they leave is what comes back."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from asyncopd.sandbox import Sandbox, SandboxError, process

CORES = len(os.sched_getaffinity(0))


async def test_code_runs_and_its_outputs_and_exit_code_come_back(box: Sandbox) -> None:
    result = await box.run("import sys\nprint(input())\nprint('é', file=sys.stderr)\nexit(3)", stdin="ü")
    assert (result.stdout, result.stderr, result.exit_code, result.ended) == ("ü\n", "é\n", 3, "finished")
    assert not result.ok and 0 < result.seconds < 5


async def test_a_command_runs_with_its_arguments(box: Sandbox) -> None:
    result = await box.run(["sh", "-c", 'echo "$0 $1"', "a  b", "*"])
    assert result.ok and result.stdout == "a  b *\n"


async def test_a_command_that_is_not_there_ends_as_in_a_shell(box: Sandbox) -> None:
    result = await box.run(["no-such-program"])
    assert result.exit_code == 127 and "no-such-program: No such file" in result.stderr


async def test_files_come_with_the_program_and_stay_for_the_next(box: Sandbox) -> None:
    given = {"data/in.txt": "5", "helper.py": "def twice(n): return 2 * n"}
    first = "import helper\nopen('out.bin', 'wb').write(bytes([helper.twice(int(open('data/in.txt').read()))]))"
    assert (await box.run(first, files=given)).ok
    assert box.files["out.bin"] == b"\x0a" and box.files["data/in.txt"] == b"5"
    second = await box.run("import os\nprint(open('out.bin', 'rb').read())\nos.remove('out.bin')")
    assert second.stdout == "b'\\n'\n" and "out.bin" not in box.files


async def test_only_regular_files_stay(box: Sandbox) -> None:
    program = """
import os, socket
os.symlink("/etc/passwd", "link")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.makedirs("empty")
open(b"\\xff", "w").close()
open("kept", "w").close()
"""
    assert (await box.run(program)).ok
    assert sorted(box.files) == ["kept", "main.py"]


async def test_what_a_program_left_gives_way_to_what_is_given(box: Sandbox) -> None:
    assert (await box.run(["sh", "-c", "mkdir main.py; echo 1 > main.py/x; echo 2 > folder"])).ok
    assert (await box.run("print(open('folder/y').read())", files={"folder/y": "3"})).stdout == "3\n"
    assert sorted(box.files) == ["folder/y", "main.py"]


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".", "a\0b", "x" * 256, "/".join("x" * 40)])
async def test_a_file_outside_the_box_is_refused(box: Sandbox, name: str) -> None:
    with pytest.raises(ValueError, match="files: "):
        await box.run("print()", files={name: "x"})


@pytest.mark.parametrize("program", [[], ["echo", "a\0b"]])
async def test_a_command_that_none_could_be_is_refused(box: Sandbox, program: list[str]) -> None:
    with pytest.raises(ValueError, match="program: "):
        await box.run(program)


async def test_files_larger_than_the_box_are_refused_by_name_of_the_limit(box: Sandbox) -> None:
    with pytest.raises(ValueError, match=r"limits\.disk_mib"):
        await box.run("print()", files={"big": bytes(3 << 20)})


async def test_text_that_is_no_unicode_is_the_programs_trouble(box: Sandbox) -> None:
    assert "SyntaxError" in (await box.run("print('\ud800')")).stderr
    assert "null bytes" in (await box.run("print('\0')")).stderr
    assert (await box.run("import sys\nsys.stdout.buffer.write(b'\\xff')")).stdout == "�"


async def test_a_box_must_be_open() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await Sandbox().run("print()")


async def test_equal_programs_print_equal_things(box: Sandbox) -> None:
    program = "print({'a', 'b', 'c', 'd', 'e'}, hash('x'))"
    assert (await box.run(program)).stdout == (await box.run(program)).stdout


async def test_two_programs_of_a_box_do_not_overlap(box: Sandbox) -> None:
    program = "import os, time\nassert not os.path.exists('x')\nopen('x', 'w').close()\ntime.sleep(0.1)\nos.remove('x')"
    assert all(result.ok for result in await asyncio.gather(*(box.run(program) for _ in range(3))))


async def test_many_at_once_never_block_the_loop(box: Sandbox) -> None:
    lags = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - before - 0.005)

    async def one(number: int) -> str:
        async with Sandbox() as own:
            return (await own.run(f"print({number})")).stdout

    watcher = asyncio.create_task(watch())
    assert await asyncio.gather(*(one(number) for number in range(64))) == [f"{number}\n" for number in range(64)]
    watcher.cancel()
    assert sorted(lags)[int(len(lags) * 0.9)] < 0.05  # the rest is left to a busy machine


async def test_no_more_run_at_once_than_the_cores_can_serve(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PER_CORE", 1)
    program = "import time\nprint(time.monotonic())\ntime.sleep(0.1)\nprint(time.monotonic())"

    async def lived() -> list[float]:
        async with Sandbox() as own:
            return [float(moment) for moment in (await own.run(program)).stdout.split()]

    lives = await asyncio.gather(*(lived() for _ in range(3 * CORES)))
    assert max(sum(begin <= start < end for begin, end in lives) for start, _ in lives) <= CORES


async def test_a_far_side_that_breaks_is_the_sandboxes_fault(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.Job, "command", lambda job, strength: ["/bin/sh", "-c", "echo broken >&2"])
    with pytest.raises(SandboxError, match="broken"):
        await box.run("print()")
    monkeypatch.setattr(process.Job, "command", lambda job, strength: ["/no/such"])
    with pytest.raises(SandboxError, match="No such file"):
        await box.run("print()")
    monkeypatch.setattr(process, "_SLACK_S", -3 * box.limits.wall_s + 0.2)
    monkeypatch.setattr(process.Job, "command", lambda job, strength: ["/bin/sleep", "60"])
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    with pytest.raises(SandboxError, match="no answer in time"):
        await box.run("print()")
