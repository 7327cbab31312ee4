"""What a server costs in CPU time: a figure that others on the same machine disturb less than they do its speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from asyncopd.bench.setting import Serve


class Server:
    """Something that serves: by `serve`, in this process and in `processes` of its own."""

    def __init__(self, serve: Serve, processes: Sequence[psutil.Process]) -> None:
        self.serve = serve
        self._processes = [psutil.Process(), *processes]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that its processes have taken so far, this one's included."""
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._processes))


@contextmanager
def processes_started() -> Iterator[list[psutil.Process]]:
    """Give a list that holds, after the block, the processes below this one that were started inside."""
    before = {process.pid for process in _below()}
    started: list[psutil.Process] = []
    yield started
    started += [process for process in _below() if process.pid not in before]


def _below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
