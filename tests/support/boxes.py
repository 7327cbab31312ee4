"""Boxes of a strength, as far as this machine can build them."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncopd.sandbox import Limits, SandboxError, Strength, launch, strength
from asyncopd.sandbox import box as box_module

SMALL = Limits(wall_s=5, cpu_s=2, memory_mib=96, processes=8, files=40, disk_mib=2, output_kib=8)
_OTHER_PYTHON = "/usr/bin/python3"


@functools.cache
def why_not(kind: Strength, interpreter: str) -> str:
    """Return why boxes of a strength cannot be built here, or nothing."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(asyncio.run, strength._try(kind)).result()
        except SandboxError as error:
            return str(error)
    return ""


def use(kind: Strength, monkeypatch: pytest.MonkeyPatch) -> Strength:
    # A superuser's interpreter may lie where no other user can read it, and only walls of mounts get around that.
    if kind == "rlimits" and os.getuid() == 0 and Path(_OTHER_PYTHON).exists():
        for module in (launch, strength):
            monkeypatch.setattr(module, "INTERPRETER", _OTHER_PYTHON)
        monkeypatch.setitem(launch._ENVIRONMENT, "PATH", "/usr/bin:/bin")
    fault = why_not(kind, launch.INTERPRETER)
    if fault:
        # Limits need nothing of a machine: where they cannot be had, the sandbox itself is at fault.
        assert kind != "rlimits" or not Path(_OTHER_PYTHON).exists(), fault
        pytest.skip(fault)

    async def admitted() -> Strength:
        return kind

    monkeypatch.setattr(box_module, "admitted", admitted)
    return kind


def alive(word: str) -> bool:
    """Return whether a process of this machine has a word among its arguments."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and word.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue  # it has ended
    return False


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return once a condition holds that tells nobody when it does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
