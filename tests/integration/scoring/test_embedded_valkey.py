"""The embedded server is private, remembers, and never outlives the run."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from asyncopd.errors import UserError
from asyncopd.scoring.cache import StoreUnavailable
from asyncopd.scoring.cache.embedded import EmbeddedStore, _Server

pytestmark = pytest.mark.integration


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def server_of(store) -> int:
    (pid,) = (child.pid for child in psutil.Process(store.pid).children() if "valkey" in child.name())
    return pid


async def test_the_server_is_reachable_by_this_user_only(embedded, tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        assert stat.S_IMODE(store.socket.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(store.socket.stat().st_mode) == 0o700
        sockets = psutil.Process(server_of(store)).net_connections("inet")
        assert sockets == []


async def test_it_ends_with_the_run_and_leaves_only_its_data(embedded, gone, tmp_path: Path) -> None:
    async with embedded(tmp_path / "cache") as store:
        pids, private = family(store.pid), store.socket.parent
        assert len(pids) == 3
        await store.put({b"a": b"1"})
    await gone(pids, 2)
    assert not private.exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["scores.rdb"]


async def test_a_start_that_is_given_up_leaves_no_server(gone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    read_log = _Server._read_log

    async def slowly(server: _Server) -> None:
        made.set_result(family(server.pid))
        await read_log(server)

    monkeypatch.setattr(_Server, "_read_log", slowly)
    starting = asyncio.create_task(EmbeddedStore(tmp_path, 8).start())
    pids = await made
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await gone(pids, 1)


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
async def test_a_start_given_up_at_any_turn_of_the_loop_leaves_no_directory(turns, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    starting = asyncio.create_task(EmbeddedStore(tmp_path / "cache", 8).start())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not [name for name in os.listdir(tmp_path) if name.startswith("asyncopd-")]


@pytest.mark.parametrize("name", ["plain", "with spaces and 'quotes'", "naïve-日本", "long" * 40])
async def test_the_next_run_finds_what_this_one_stored(name: str, embedded, tmp_path: Path) -> None:
    directory = tmp_path / name / "cache"
    async with embedded(directory) as store:
        await store.put({b"key": b"value"})
    async with embedded(directory) as store:
        assert await store.get([b"key"]) == [b"value"]


@pytest.mark.parametrize("name", ["a b", "long" * 40])
async def test_the_socket_fits_wherever_temporary_files_lie(
    name: str, embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    async with embedded(tmp_path / "cache") as store:
        await store.put({b"a": b"1"})
        assert store.socket.is_relative_to(tmp_path / name) == (len(name) < 100)


async def test_a_killed_server_is_started_again_by_the_call_that_misses_it(embedded, gone, tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        await store.put({b"a": b"1"})
        pids = family(store.pid)
        os.kill(server_of(store), signal.SIGKILL)
        await gone(pids)
        with pytest.raises(StoreUnavailable):
            await store.get([b"a"])
        assert await store.get([b"a"]) == [None]
        await store.put({b"a": b"2"})
        assert await store.get([b"a"]) == [b"2"]
        pids = family(store.pid)
    await gone(pids)


async def test_unreadable_data_is_put_aside(embedded, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "scores.rdb").write_bytes(b"not a dump")
    async with embedded(tmp_path) as store:
        await store.put({b"a": b"1"})
    assert (tmp_path / "scores.unreadable").read_bytes() == b"not a dump"
    assert "the cache starts empty" in caplog.text


async def test_a_server_that_cannot_start_says_why(embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "valkey-server"
    fake.write_text("#!/bin/sh\necho no memory for you\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr("asyncopd.scoring.cache.embedded.server_binary", lambda: fake)
    with pytest.raises(
        UserError, match=r"scoring\.cache: the embedded Valkey ended at its start \(no memory for you\)"
    ):
        async with embedded(tmp_path / "cache"):
            pass


RUN = """
    import asyncio, sys
    from pathlib import Path
    from asyncopd.config.scoring import ScoringSection
    from asyncopd.scoring.cache import open_store

    async def main():
        async with open_store(ScoringSection(cache="embedded", cache_mib=8), Path(sys.argv[1])) as store:
            await store.put({b"key": b"value"})
            print(store.pid, store.socket, flush=True)
            await asyncio.sleep(60)

    asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_no_process_survives_a_killed_run_and_its_scores_are_kept(
    how: signal.Signals, embedded, gone, tmp_path: Path
) -> None:
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert run.stdout is not None
    pid, socket = (await run.stdout.readline()).decode().split()
    pids = family(int(pid))
    assert len(pids) == 3
    run.send_signal(how)
    await run.wait()
    await gone(pids)
    assert not Path(socket).parent.exists()
    async with embedded(tmp_path) as store:
        assert await store.get([b"key"]) == [b"value"]


async def test_an_interrupt_at_the_terminal_does_not_reach_the_server(embedded, tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        assert os.getsid(server_of(store)) != os.getsid(0)
