"""Walls of our own: namespaces of this process and a root directory that holds the interpreter and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from . import kernel

# Flags of a mount that a user namespace may not drop, by the bits that statvfs gives them.
_LOCKED = {
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_NOATIME: kernel.MS_NOATIME,
    os.ST_NODIRATIME: kernel.MS_NODIRATIME,
}
_SPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)


def enclose(job: dict[str, Any]) -> None:
    """Return in a process that is the first of its own process namespace, behind the walls; the caller's never returns.

    It waits outside instead, and ends as that process does. Raises `OSError` where the kernel forbids it.
    """
    if os.getuid() == 0:
        kernel.unshare(_SPACES)
    else:
        kernel.new_user_namespace(_SPACES)
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    child = os.fork()
    if child:
        os.closerange(0, 3)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _change_root(job["mounts"], job["devices"], job["links"])
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    for place in ("/box", "/tmp"):
        kernel.mount("tmpfs", place, "tmpfs", flags, f"size={job['limits']['disk']},mode=0700")
    kernel.mount("", "/", "", kernel.MS_REMOUNT | kernel.MS_RDONLY | flags)


def _change_root(mounts: Sequence[str], devices: Sequence[str], links: dict[str, str]) -> None:
    """Make the root an empty directory but for `mounts`, read-only at their old paths, devices and symbolic links."""
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    os.mkdir("/tmp/outside")
    kernel.pivot_root("/tmp", "/tmp/outside")
    os.chdir("/")
    for path in ("/box", "/tmp", "/proc", "/dev"):
        os.mkdir(path)
    for path in mounts:
        _show(path, kernel.MS_RDONLY | kernel.MS_NODEV)
    for device in devices:
        _show(device, 0)
    for path, target in links.items():
        os.symlink(target, path)
    # While the old one is in sight, or the kernel takes a new one for a way around what hides parts of it.
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.unmount("/outside")
    os.rmdir("/outside")


def _show(path: str, flags: int) -> None:
    """Bind what is at `path` outside to the same path here."""
    outside = f"/outside{path}"
    if os.path.isdir(outside):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    kernel.mount(outside, path, "", kernel.MS_BIND | kernel.MS_REC)
    kept = os.statvfs(path).f_flag
    flags |= kernel.MS_NOSUID
    for bit, flag in _LOCKED.items():
        flags |= flag if kept & bit else 0
    kernel.mount("", path, "", kernel.MS_BIND | kernel.MS_REMOUNT | flags)
