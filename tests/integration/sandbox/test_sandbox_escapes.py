"""What a program behind walls cannot do; every one of these was meant to succeed."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boxes import alive, until

from asyncopd.sandbox import Sandbox

pytestmark = pytest.mark.integration


@pytest.fixture
def secret() -> Iterator[str]:
    """A file that everybody on this machine may read and write."""
    with tempfile.NamedTemporaryFile("w+", dir="/var/tmp", prefix="asyncopd-secret-") as file:
        os.chmod(file.name, 0o666)
        file.write("swordfish")
        file.flush()
        yield file.name
        assert Path(file.name).read_text() == "swordfish"


async def refused(box: Sandbox, *programs: str) -> None:
    """Run programs that should not get to their end; the machine has to refuse them all."""
    tries = "".join(
        f"try:\n    {program}\n    print('escaped:', {program!r})\nexcept OSError: print('refused')\n"
        for program in programs
    )
    result = await box.run(f"import os, socket\n{tries}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "refused\n" * len(programs)


async def test_reading_by_path_and_by_traversal(walled: Sandbox, secret: str) -> None:
    ways = (secret, f"../../../..{secret}", f"/proc/self/root{secret}", f"/proc/self/cwd/..{secret}")
    await refused(walled, *(f"open({way!r})" for way in ways))


async def test_reading_through_a_link_at_once_and_in_the_next_run(walled: Sandbox, secret: str) -> None:
    await refused(walled, f"os.symlink({secret!r}, 'link'); open('link')")
    await refused(walled, "open('link')")
    assert b"swordfish" not in b"".join(walled.files.values())


async def test_writing_outside(walled: Sandbox, secret: str) -> None:
    places = ("/", "/usr/", "/usr/bin/", "/etc/", "/dev/", f"{sys.base_prefix}/lib/", "/proc/sys/kernel/")
    await refused(walled, f"open({secret!r}, 'w')", *(f"open({place + 'written'!r}, 'w')" for place in places))


async def test_what_belongs_to_who_runs_it_is_not_there(walled: Sandbox) -> None:
    paths = (Path.home() / ".bashrc", Path(__file__), Path("/etc/passwd"), Path("/etc/shadow"), Path("/var"))
    await refused(walled, *(f"os.stat({str(path)!r})" for path in paths))


async def test_other_processes_cannot_be_seen_signalled_or_read(walled: Sandbox) -> None:
    seen = await walled.run("import os\nprint(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))")
    assert seen.stdout == "[1, 2]\n"
    await refused(
        walled,
        f"os.kill({os.getpid()}, 0)",
        *(f"open('/proc/1/{name}', 'rb').read(1)" for name in ("environ", "mem", "maps")),
        *(f"os.listdir('/proc/1/{name}/')" for name in ("fd", "root", "cwd")),
    )


async def test_the_guard_cannot_be_killed_stopped_or_traced(walled: Sandbox) -> None:
    kill = "import os\nfor n in (9, 15, 19, 2):\n    try: os.kill(1, n)\n    except OSError: pass\nprint('still here')"
    result = await walled.run(kill)
    assert result.ended == "finished" and result.stdout == "still here\n"
    trace = "import ctypes\nprint(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert (await walled.run(trace)).stdout == "-1\n"


async def test_no_network_not_even_this_machines(walled: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hosts = ("127.0.0.1", "localhost", "192.0.2.1")
        await refused(
            walled,
            *(f"socket.create_connection(({host!r}, {port}), 2)" for host in hosts),
            "socket.socket(2, 2).sendto(b'x', ('192.0.2.1', 9))",
            "socket.socket(socket.AF_PACKET, 3)",
        )


async def test_no_unix_socket_of_others(walled: Sandbox, secret: str) -> None:
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(f"{secret}.socket")
        os.chmod(f"{secret}.socket", 0o666)
        abstract.bind("\0asyncopd-escape-test")
        for server in (named, abstract):
            server.listen()
        names = (named.getsockname(), abstract.getsockname())
        await refused(walled, *(f"socket.socket(socket.AF_UNIX).connect({name!r})" for name in names))
        os.unlink(f"{secret}.socket")


async def test_no_descriptor_is_inherited(any_box: Sandbox, secret: str) -> None:
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    result = await any_box.run("import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))")
    os.close(descriptor)
    assert result.stdout == "[0, 1, 2, 3]\n"  # the last is that of the listing itself


async def test_no_variable_is_inherited(any_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "swordfish")
    result = await any_box.run("import os\nprint(sorted(os.environ), 'swordfish' in str(os.environ))")
    names = "HOME LANG PATH PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONNOUSERSITE PYTHONUNBUFFERED PYTHONUTF8 TMPDIR"
    assert result.stdout == f"{names.split()} False\n"


async def test_no_privilege_is_left_nor_can_be_had(any_box: Sandbox) -> None:
    result = await any_box.run("import os\nprint(os.getuid() != 0)\nprint(open('/proc/self/status').read())")
    status = dict(line.split(":\t", 1) for line in result.stdout.split("\n") if ":\t" in line)
    assert result.stdout.startswith("True")
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    await refused(any_box, "os.setuid(0)")


async def test_no_wall_can_be_built_or_taken_down_from_within(walled: Sandbox) -> None:
    calls = ("unshare(0x10020000)", "umount2(b'/usr', 2)", "mount(b'x', b'/box', b'tmpfs', 0, 0)", "chroot(b'/usr')")
    program = f"import ctypes\nlibc = ctypes.CDLL(None)\nprint({', '.join(f'libc.{call}' for call in calls)})"
    assert (await walled.run(program)).stdout == "-1 -1 -1 -1\n"


async def test_a_device_cannot_be_made_nor_a_disk_be_read(walled: Sandbox) -> None:
    await refused(walled, "os.mknod('disk', 0o60666, os.makedev(8, 0)); open('disk', 'rb')")
    listed = await walled.run("import os\nprint(sorted(os.listdir('/dev')))")
    assert listed.stdout == "['full', 'null', 'random', 'shm', 'urandom', 'zero']\n"


async def test_the_terminal_cannot_be_typed_into(any_box: Sandbox) -> None:
    await refused(any_box, "open('/dev/tty')")


async def test_lifting_a_limit_is_refused(any_box: Sandbox) -> None:
    program = "import resource as r\nfor kind in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NPROC, r.RLIMIT_FSIZE):\n"
    program += (
        "    try: r.setrlimit(kind, (r.RLIM_INFINITY, r.RLIM_INFINITY)); print('lifted')\n    except ValueError: pass"
    )
    assert (await any_box.run(program)).stdout == ""


async def test_the_far_side_ends_with_who_started_it(walls: str) -> None:
    code = (
        "import asyncio\nfrom asyncopd.sandbox import Sandbox\n"
        "async def main():\n    async with Sandbox() as box: await box.run(['sleep', '17.3205'])\nasyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await until(lambda: alive("17.3205"))
    parent.kill()
    await parent.wait()
    await until(lambda: not alive("17.3205"))
