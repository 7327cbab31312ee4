"""Which walls this machine can build, found by building them once, and which are enough."""

from __future__ import annotations

import asyncio
import functools
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import get_args

from asyncopd.errors import UserError
from asyncopd.sandbox.launch import INTERPRETER, Job, Strength
from asyncopd.sandbox.limits import Limits
from asyncopd.sandbox.process import SandboxError, carry_out

STRENGTHS: tuple[Strength, ...] = get_args(Strength)
"""The strongest first."""

MEANINGS: dict[Strength, str] = {
    "bubblewrap": "no network, no files or processes but its own, limits on what it takes",
    "namespaces": "no network, no files or processes but its own, limits on what it takes",
    "rlimits": "limits on time, memory, processes and output, and an environment without secrets; it does not stop "
    "the network, nor reading and writing what this user may, nor filling the disk",
}

_TRIAL = Limits(wall_s=20, cpu_s=10)
_PROBE = """
import os, socket, sys
file, strength = sys.argv[1:]
if strength != "rlimits":
    assert not os.path.exists(file), "a file of the machine's can be seen"
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
    assert not others, "other processes can be seen"
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
        sys.exit("the network can be reached")
    except OSError:
        pass
"""

_lock = threading.Lock()
_weakest: Strength = "namespaces"
_used = False


@dataclass(frozen=True)
class Found:
    """The strongest walls that stood when tried, `None` if none did, and why stronger ones did not."""

    strength: Strength | None
    refused: dict[Strength, str]

    def __str__(self) -> str:
        if self.strength is None:
            return f"none ({self.why()})"
        why = f" ({self.why()})" if self.refused and self.strength == "rlimits" else ""
        return f"{self.strength}: {MEANINGS[self.strength]}{why}"

    def why(self) -> str:
        """Return what stood in the way of the stronger ones."""
        return "; ".join(self.refused.values())


def accept(weakest: Strength) -> None:
    """Have this process open no sandbox that is weaker; at first it is `namespaces`."""
    global _weakest
    _weakest = weakest


async def admitted() -> Strength:
    """Return the strength in force. Raises `UserError` if it is weaker than what is accepted."""
    global _used
    found = await asyncio.to_thread(find)
    if found.strength is None:
        raise UserError("sandbox", f"none can be built here ({found.why()})", "run on Linux")
    if STRENGTHS.index(found.strength) > STRENGTHS.index(_weakest):
        raise UserError(
            f"rollout.sandbox {_weakest}",
            f"only {found.strength} can be had here ({found.why()})",
            f"install bubblewrap and allow user namespaces, or accept rollout.sandbox={found.strength}: "
            f"{MEANINGS[found.strength]}",
        )
    _used = True
    return found.strength


def in_force() -> Found | None:
    """Return the walls that this process uses, `None` as long as it has opened no sandbox."""
    return find() if _used else None


def find() -> Found:
    """Try the strengths, once in the life of this process, and return what was found; takes about a second."""
    with _lock:
        return _find()


@functools.cache
def _find() -> Found:
    if sys.platform != "linux":
        return Found(None, {"rlimits": "it needs Linux"})
    refused: dict[Strength, str] = {}
    for strength in STRENGTHS:
        try:
            with ThreadPoolExecutor(1) as thread:  # as a loop may run in this one
                thread.submit(asyncio.run, _try(strength)).result()
        except SandboxError as error:
            refused[strength] = str(error)
        else:
            return Found(strength, refused)
    return Found(None, refused)


async def _try(strength: Strength) -> None:
    """Run a program that looks around. Raises `SandboxError` if it cannot, or sees what it should not."""
    with tempfile.NamedTemporaryFile(prefix="asyncopd-seen-") as file:
        argv = [INTERPRETER, "-c", _PROBE, file.name, strength]
        header, (_, stderr, *_) = await carry_out(strength, Job(argv, _TRIAL))
    if header["exit_code"] != 0:
        said = stderr.decode(errors="replace").strip().splitlines() or [f"exit code {header['exit_code']}"]
        raise SandboxError(f"{strength}: {said[-1]}")
