"""A vLLM server of our own, on a private unix socket.

Invariants:
- its endpoints have no TCP port, for vLLM guards only some of them with a key; the socket lies in a directory that
  only this user can enter;
- the server, its core and that directory end whenever this process does, even by SIGKILL;
- its end is noticed at once, and told with the last lines of its log.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.vllm.arguments import command_line, engine_arguments
from asyncopd.engines.vllm.cpu_build import cpu_build_variables, is_cpu_build
from asyncopd.engines.vllm.launch import vllm_variables
from asyncopd.leash import leashed, private_directory
from asyncopd.records import DrawSpec

_GRACE_S = 5.0
_LAST_LINES = 12
_TAIL_BYTES = 8192


class ServerProcess:
    """A server under its supervisor; `ended` returns, once it has ended, what is known of it."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path, key: str, log: Path) -> None:
        self.socket = socket
        self.key = key
        self._process = process
        self._log = log
        self._ending = asyncio.create_task(process.wait())

    @classmethod
    async def start(cls, arguments: dict[str, Any], threads: int, log: Path | None) -> ServerProcess:
        """Start vLLM with `arguments` on `threads` compute threads; `log` takes what it says, by default beside its
        socket."""
        directory = private_directory()
        socket, key = directory / "s", secrets.token_urlsafe(32)
        log = log or directory / "log"
        command = leashed([sys.executable, *server_command(arguments), "--uds", str(socket)], _GRACE_S, directory)
        spawning = asyncio.create_task(_spawn(command, _variables(threads, key), log))
        try:
            return cls(await asyncio.shield(spawning), socket, key, log)
        except asyncio.CancelledError:
            await cls(await spawning, socket, key, log).close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the supervisor, which leads the process group."""
        return self._process.pid

    async def ended(self) -> str:
        """Wait for the end of the server, then say how it ended."""
        code = await asyncio.shield(self._ending)
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{how}; {self.last_words()}"

    def last_words(self) -> str:
        """Return the last lines of the log."""
        return f"the last lines of {self._log}:\n{_tail(self._log)}"

    async def close(self) -> None:
        """Tell the server to end, and kill what is left of it a few seconds later."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait({self._ending}, timeout=_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._ending
        # The supervisor does this too, unless it was killed itself.
        shutil.rmtree(self.socket.parent, ignore_errors=True)


def server_arguments(
    directory: Path, section: EngineSection, *, dtype: Dtype, seed: int, draws: DrawSpec
) -> dict[str, Any]:
    """Return the arguments of a server; see `engine_arguments`."""
    arguments = engine_arguments(directory, section, dtype=dtype, seed=seed, draws=draws, on_cpu=is_cpu_build())
    # A server counts the sampled token among the likeliest; and two are what a server is tried with.
    return {**arguments, "max_logprobs": max(draws.head + 1, 2)}


def server_command(arguments: dict[str, Any]) -> list[str]:
    """Return what Python is told to start a server, but for where it listens."""
    # The module form is the one that vLLM's CPU build answers to; its script looks for another distribution.
    module = "vllm.entrypoints.launchers.api_server.entry"
    return ["-m", module, *command_line(arguments), "--enable-scale-out", "--disable-uvicorn-access-log"]


def _variables(threads: int, key: str) -> dict[str, str]:
    variables = {**os.environ, **vllm_variables(threads)}
    if is_cpu_build():
        variables |= cpu_build_variables(variables)
    # A key in the arguments could be read by everyone on the machine.
    return {**variables, "VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "INFO", "VLLM_API_KEY": key}


async def _spawn(command: list[str], variables: dict[str, str], log: Path) -> asyncio.subprocess.Process:
    """Start the supervisor; given up half way it would leave a server that nobody watches."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command,
            env=variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _tail(log: Path) -> str:
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-_LAST_LINES:])
    return ""
