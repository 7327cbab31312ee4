"""A directory for weights in flight that vanishes with the process that made it, or at the next start.

Invariants:
- a directory of this kind is locked by its owner for as long as the owner lives, even if it is killed,
  and by nobody after a crash or a reboot;
- it gets its final name only once it is locked, so what can be found and locked is abandoned.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "asyncopd-weights-"
_SHARED_MEMORY = Path("/dev/shm")


class OwnedDirectory:
    """A fresh directory below `parent`, at `path`; abandoned ones beside it are removed first."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        reclaim(parent)
        unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = unlocked.rename(parent / unlocked.name.removeprefix("."))

    def close(self) -> None:
        """Remove the directory; the lock goes last."""
        shutil.rmtree(self.path)
        os.close(self._lock)


def reclaim(parent: Path) -> list[Path]:
    """Remove this user's abandoned directories below `parent`, and return them."""
    removed = []
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            if path.stat().st_uid == os.geteuid() and _remove_abandoned(path):
                removed.append(path)
        except FileNotFoundError:
            continue  # another run that starts now was faster, or its owner ended
    return removed


def _remove_abandoned(path: Path) -> bool:
    """Remove `path` unless its owner lives; return whether it did."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        shutil.rmtree(path)
        return True
    finally:
        os.close(lock)


def roomy_directory(run_directory: Path, most_bytes: int) -> Path:
    """Return where weights should pass: /dev/shm if it has room for `most_bytes` at once, else `run_directory`."""
    if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK):
        free = shutil.disk_usage(_SHARED_MEMORY).free
        # Half is left to others: a full /dev/shm breaks more than this run.
        if most_bytes < free / 2:
            return _SHARED_MEMORY
    return run_directory
