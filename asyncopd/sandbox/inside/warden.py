"""Watches a program until it ends, or passes a limit, or nobody wants it any more.

Invariants:
- whatever ends the watch, no process of the program's outlives it;
- no more than the limit is kept of an output, however much is written;
- the end of standard input is the end of the program: who gives it up, or dies, closes that pipe.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from .directory import Directory
from .tree import Tree, waited

_LOOK_S = (0.02, 0.1)  # between looks at what a program takes: first and last, a tenth of its age in between
_CHUNK = 1 << 16
_BRIEF_S = 0.5  # of a core, after which a program has to leave the cores to others
_PATIENCE = 3  # times the limit on time, for one that waits for a core


@dataclass
class Output:
    """What came of one output, up to a limit of bytes."""

    descriptor: int
    limit: int
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    cut: bool = False

    def read(self) -> bool:
        """Take what is there; return whether there may be more to come."""
        data = os.read(self.descriptor, _CHUNK)
        room = self.limit - self.size
        self.parts.append(data[:room])
        self.size += len(data[:room])
        self.cut = self.cut or len(data) > room
        return bool(data)


class Warden:
    """Guards one program, already started as `child`."""

    def __init__(
        self, child: int, outputs: list[Output], tree: Tree, directory: Directory, limits: dict[str, Any]
    ) -> None:
        self._child = child
        self._outputs = {output.descriptor: output for output in outputs}
        self._tree = tree
        self._directory = directory
        self._limits = limits
        self._began = time.monotonic()

    def guard(self) -> tuple[str, int, float]:
        """Return why the program ended, its exit code (negative: a signal's) and its seconds, when all are gone."""
        ended = os.pidfd_open(self._child)
        why = self._watch(ended)
        os.close(ended)
        seconds = time.monotonic() - self._began
        os.kill(self._child, signal.SIGKILL)  # nothing to one that has ended and was not yet waited for
        _, status, usage = os.wait4(self._child, 0)
        self._tree.kill()
        for output in self._outputs.values():
            while output.read():
                pass
        code = os.waitstatus_to_exitcode(status)
        out_of_cpu = usage.ru_utime + usage.ru_stime >= self._limits["cpu"]  # told so by a signal, which it may ignore
        if why == "finished" and (code == -signal.SIGXCPU or (code == -signal.SIGKILL and out_of_cpu)):
            why = "timeout"
        return why, code, seconds

    def _watch(self, ended: int) -> str:
        poll = select.poll()
        poll.register(0, 0)  # tells of nothing but the other end's closing
        poll.register(ended, select.POLLIN)
        for descriptor in self._outputs:
            poll.register(descriptor, select.POLLIN)
        look = self._began
        while True:
            happened = [descriptor for descriptor, _ in poll.poll(max(0.0, look - time.monotonic()) * 1000)]
            if 0 in happened:
                return "abandoned"
            for descriptor in self._outputs.keys() & set(happened):
                if not self._outputs[descriptor].read():
                    poll.unregister(descriptor)
                elif self._outputs[descriptor].cut:
                    return "output"
            if ended in happened:
                return "finished"
            now = time.monotonic()
            if now >= look:
                look = now + min(max((now - self._began) / 10, _LOOK_S[0]), _LOOK_S[1])
                passed = self._passed()
                if passed is not None:
                    return passed

    def _passed(self) -> str | None:
        """Return the limit that was passed, if one was."""
        use = self._tree.use()
        if use.cpu > _BRIEF_S:
            self._tree.demote()
        seconds = time.monotonic() - self._began
        own = seconds - min(waited(self._child), seconds * (1 - 1 / _PATIENCE))
        if own > self._limits["wall"]:
            return "timeout"
        if use.memory > self._limits["memory"]:
            return "memory"
        if use.threads > self._limits["processes"]:
            return "processes"
        if self._directory.entries() > self._limits["files"]:
            return "files"
        return None
