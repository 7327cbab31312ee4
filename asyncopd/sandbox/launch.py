"""How the far side is started, by strength: the command, what it may see of this machine, and the job it is given."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from asyncopd.sandbox.inside import wire
from asyncopd.sandbox.inside.directory import blocks
from asyncopd.sandbox.limits import Limits

Strength = Literal["bubblewrap", "namespaces", "rlimits"]

INTERPRETER = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
_HERE = Path(__file__).parent
_INSIDE = "/run/asyncopd"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib64", "/lib32")
_ENVIRONMENT = {
    "PATH": f"{Path(INTERPRETER).parent}:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # equal programs print equal things
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",  # what was printed before a time-out is seen
    "PYTHONUTF8": "1",
}
# Users that nobody else is: the range that systemd leaves to services without a name. A superuser's programs take
# turns with them, as what the kernel counts by user should not be another program's.
_USERS = itertools.cycle(range(61184, 65520))


@dataclass(frozen=True)
class Job:
    """One program to run: in a box that has the files `kept`, with `added` ones that its limits do not count."""

    argv: Sequence[str]
    limits: Limits
    kept: Mapping[str, bytes] = field(default_factory=dict)
    added: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""

    def command(self, strength: Strength) -> list[str]:
        """Return what starts the far side. Raises `FileNotFoundError` if bubblewrap is not on PATH."""
        start = "import sys; sys.path.insert(0, {!r}); from inside.main import main; main()"
        python = [INTERPRETER, "-I", "-S", "-B", "-c"]
        if strength != "bubblewrap":
            return [*python, start.format(str(_HERE))]
        return [*_bubblewrap(self._disk()), "--", *python, start.format(_INSIDE)]

    def message(self, strength: Strength) -> bytes:
        """Return what the far side is told."""
        mounts, links = _visible()
        files = {**self.kept, **self.added}
        limits = self.limits
        header = {
            "strength": strength,
            "argv": list(self.argv),
            "environment": _ENVIRONMENT,
            "limits": {
                "wall": limits.wall_s,
                "cpu": limits.cpu_s,
                "memory": limits.memory_mib << 20,
                "processes": limits.processes,
                # The kernel takes a name in a folder for a fiftieth of a file.
                "files": limits.files + limits.files // 50 + sum(name.count("/") + 2 for name in self.added),
                "disk": self._disk(),
                "output": limits.output_kib << 10,
            },
            "kept": [limits.disk_mib << 20, limits.files],
            "mounts": mounts,
            "devices": _DEVICES,
            "links": links,
            "user": next(_USERS) if os.getuid() == 0 else None,
            "files": list(files),
        }
        return wire.pack(header, [self.stdin, *files.values()])

    def _disk(self) -> int:
        return (self.limits.disk_mib << 20) + sum(blocks(len(content)) for content in self.added.values())


@functools.cache
def _visible() -> tuple[list[str], dict[str, str]]:
    """Return the paths that a program may read, and the links among the system's: interpreter, libraries, commands."""
    prefixes = {os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    mounts = ["/usr", *sorted(prefix for prefix in prefixes if not f"{prefix}/".startswith("/usr/"))]
    links = {"/dev/shm": "/tmp"}
    for path in _SYSTEM:
        if os.path.islink(path):
            links[path] = os.readlink(path)
        elif os.path.isdir(path):
            mounts.append(path)
    if os.path.exists("/etc/ld.so.cache"):
        mounts.append("/etc/ld.so.cache")
    return mounts, links


def _bubblewrap(room: int) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not on PATH")
    mounts, links = _visible()
    words = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    if os.getuid() == 0:
        # The superuser's program is given another user, which the far side needs these for, and then has none.
        for capability in ("SETUID", "SETGID", "KILL", "CHOWN", "DAC_OVERRIDE", "SYS_NICE"):
            words += ["--cap-add", f"CAP_{capability}"]
    else:
        words.append("--unshare-user")
    shown = (*mounts, *_DEVICES, f"{_INSIDE}/inside")
    for path in sorted({str(folder) for mount in shown for folder in Path(mount).parents}):
        words += ["--perms", "0755", "--dir", path]  # or only the superuser may pass
    for path in mounts:
        words += ["--ro-bind", path, path]
    for path in _DEVICES:
        words += ["--dev-bind", path, path]
    for path, target in links.items():
        words += ["--symlink", target, path]
    for path in ("/box", "/tmp"):
        words += ["--size", str(room), "--tmpfs", path]
    words += ["--ro-bind", str(_HERE / "inside"), f"{_INSIDE}/inside", "--proc", "/proc", "--remount-ro", "/"]
    return words
