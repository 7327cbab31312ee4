"""The system calls that Python has no words for, through the C library."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE = 1024, 2048, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave namespaces. Raises `OSError`, as all here do."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount, bind or remount."""
    texts = (os.fsencode(text) for text in (source, target, kind))
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def unmount(target: str) -> None:
    """Take a mount and all below it out of sight."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root, and the root of before appear at `old`."""
    machine = platform.machine()
    if machine not in _PIVOT_ROOT:
        raise OSError(0, f"pivot_root: its number on {machine} is not known")
    _checked(_libc.syscall(_PIVOT_ROOT[machine], os.fsencode(new), os.fsencode(old)), "pivot_root")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process."""
    _checked(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def new_user_namespace(flags: int = 0) -> None:
    """Enter a user namespace of one's own, in which one keeps one's ids; other namespaces by `flags` with it."""
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | flags)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {user} 1")
    write("/proc/self/gid_map", f"{group} {group} 1")


def write(path: str, text: str) -> None:
    """Write a file of the kernel's in one go."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
