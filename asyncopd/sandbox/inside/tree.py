"""All processes that a program started, whatever they did to be forgotten."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from . import kernel

_LOWEST = 19
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_USER_TIME, _SYSTEM_TIME, _THREADS, _RESIDENT = 11, 12, 17, 21  # places in /proc/PID/stat after the name


@dataclass
class Use:
    """What processes take together: threads, bytes in memory (shared ones for each), and seconds of a core so far."""

    threads: int = 0
    memory: int = 0
    cpu: float = 0.0


class Tree:
    """The processes below this one: it adopts those whose parents end, and kills them all.

    As the first process of a process namespace it knows and kills them at one stroke. Elsewhere it walks from parent
    to child, again and again until none is left.
    """

    def __init__(self) -> None:
        self._first = os.getpid() == 1
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)

    def use(self) -> Use:
        """Return what the processes take now."""
        total = Use()
        for process in self._processes():
            try:
                with open(f"/proc/{process}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            total.threads += int(fields[_THREADS])
            total.memory += int(fields[_RESIDENT]) * _PAGE
            total.cpu += (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS
        return total

    def demote(self) -> None:
        """Let them run only where a core has nothing else to do, or nearly so."""
        for process in self._processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{process}/task"):
                    os.setpriority(os.PRIO_PROCESS, int(thread), _LOWEST)
            with contextlib.suppress(OSError):  # not every kernel groups sessions, and it grants few changes a second
                kernel.write(f"/proc/{process}/autogroup", str(_LOWEST))

    def kill(self) -> None:
        """Kill them all and return when they are gone."""
        while True:
            with contextlib.suppress(ProcessLookupError):
                if self._first:
                    os.kill(-1, signal.SIGKILL)
            for process in () if self._first else self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def tasks_of_user(self) -> int:
        """Return the threads that this process's user has on the machine, which a limit on them counts too."""
        user, total = os.getuid(), 0
        for name in os.listdir("/proc"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                    total += len(os.listdir(f"/proc/{name}/task"))
        return total

    def _processes(self) -> Iterator[int]:
        if self._first:
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1")
            return
        found = [os.getpid()]
        while found:
            for child in _children(found.pop()):
                found.append(child)
                yield child


def _children(process: int) -> list[int]:
    children = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                children += [int(name) for name in file.read().split()]
    return children


def waited(process: int) -> float:
    """Return the seconds for which a process was ready to run and no core was free."""
    try:
        with open(f"/proc/{process}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended, or this kernel does not count
