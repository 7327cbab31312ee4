"""One run of the far side, from here.

Invariants:
- however a run ends, also by cancellation, the far side is told by the closing of its standard input, and killed if it
  does not end by itself;
- at most so many run at once as the cores can serve, the others wait in order;
- the event loop only waits: all that a program writes is read, cut and timed by the far side.
"""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from typing import Any

from asyncopd.sandbox.inside import wire
from asyncopd.sandbox.launch import Job, Strength

# Some programs wait more than they work; of those that work, all but one a core only wait for their turn.
_PER_CORE = 8
# Seconds to start and to clean up on a busy machine, beyond the program's own.
_SLACK_S = 60.0
_GRACE_S = 5.0
_PATIENCE = 3  # see `Limits.wall_s`

_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


class SandboxError(Exception):
    """The sandbox itself failed, through no fault of the program's."""


async def carry_out(strength: Strength, job: Job) -> tuple[dict[str, Any], list[bytes]]:
    """Send a job to a far side of its own and return the answer's header and blobs. Raises `SandboxError`."""
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(_PER_CORE * len(os.sched_getaffinity(0))))
    async with slots:
        process = await _started(strength, job)
        try:
            async with asyncio.timeout(_PATIENCE * job.limits.wall_s + _SLACK_S):
                header, blobs = await _exchange(process, job.message(strength))
        except TimeoutError:
            raise SandboxError(f"{strength}: the far side gave no answer in time") from None
        finally:
            await _end(process)
    if "fault" in header:
        raise SandboxError(f"{strength}: {header['fault']}")
    return header, blobs


async def _started(strength: Strength, job: Job) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *job.command(strength), stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise SandboxError(f"{strength}: {error.strerror or error}") from error


async def _exchange(process: asyncio.subprocess.Process, message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    complaint = asyncio.create_task(process.stderr.read())
    try:
        process.stdin.write(message)
        await process.stdin.drain()
        (length,) = wire.LENGTH.unpack(await process.stdout.readexactly(wire.LENGTH.size))
        header = json.loads(await process.stdout.readexactly(length))
        return header, wire.split(header, await process.stdout.readexactly(sum(header["sizes"])))
    except (asyncio.IncompleteReadError, ConnectionError):
        process.stdin.close()
        lines = (await complaint).decode(errors="replace").strip().splitlines()
        raise SandboxError(lines[-1] if lines else "the far side ended without an answer") from None
    finally:
        complaint.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
