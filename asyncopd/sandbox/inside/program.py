"""Starts a program with nothing of ours left in it: no descriptor, no variable, no privilege, little priority."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Sequence
from typing import Any

from . import kernel

_NICE = 5  # until it shows itself to be a long one, see the warden
_GIVEN_UP = 1000  # the kernel's score of what to kill first where memory runs out
_DESCRIPTORS = 128
_NOT_FOUND, _NOT_STARTED = 127, 126


class NotStarted(Exception):
    """A program could not be confined, so it was not started."""


def start(job: dict[str, Any], descriptors: Sequence[int], tasks: int) -> int:
    """Start the program of a job on three descriptors, its input, output and errors, and return its id.

    `tasks` are the threads that its user has already. Raises `NotStarted`; a program that is not there is one that
    ends with code 127, as with a shell.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _become(job, descriptors, tasks, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        fault = file.read().decode()
    if fault:
        os.waitpid(child, 0)
        raise NotStarted(fault)
    return child


def _become(job: dict[str, Any], descriptors: Sequence[int], tasks: int, report: int) -> None:
    """Turn this process into the program; never returns."""
    try:
        os.setsid()
        _confine(job, tasks)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.set_inheritable(report, False)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    except BaseException as error:  # noqa: BLE001 - nothing may go on in the copy of this process
        os.write(report, str(error).encode() or b"unknown")
        os._exit(_NOT_STARTED)
    try:
        # All that Python opened is closed on exec by itself; this is for what it was given.
        os.closerange(3, report)
        os.closerange(report + 1, _DESCRIPTORS)
        os.execvpe(job["argv"][0], job["argv"], job["environment"])
    except OSError as error:
        os.write(2, f"{job['argv'][0]}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(_NOT_FOUND)


def _confine(job: dict[str, Any], tasks: int) -> None:
    os.nice(_NICE)
    user = job["user"]
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or its own entry of /proc is not its own
    kernel.write("/proc/self/oom_score_adj", str(_GIVEN_UP))
    if _no_more_namespaces():
        tasks = 0
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = job["limits"]
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NPROC, limits["processes"] + 1 + tasks),  # one more, which the warden sees
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        # A second more, so that the soft limit's signal tells what ended it.
        resource.setrlimit(kind, (value, value + 1 if kind == resource.RLIMIT_CPU else value))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def _no_more_namespaces() -> bool:
    """Enter a last user namespace, so that its processes are counted by themselves, and forbid any below it.

    Returns whether this could be done; it cannot where the kernel, or a wall around us, forbids even this one.
    """
    with contextlib.suppress(OSError):
        kernel.new_user_namespace()
        kernel.write("/proc/sys/user/max_user_namespaces", "0")
        return True
    return False
