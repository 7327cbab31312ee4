"""A program's files: laid out before it runs, gathered after it, and in between its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping

_DEPTH = 16  # of folders that are gathered
_BLOCK = 4096  # bytes that even the smallest file takes
_REMOVE = 'chmod -R u+rwX -- "$0"; rm -rf -- "$0"'


class Directory:
    """Where a program runs: `/box` behind walls, a temporary directory where there are none."""

    def __init__(self, *, walled: bool, user: int | None) -> None:
        self.path = "/box" if walled else tempfile.mkdtemp(prefix="asyncopd-box-", dir="/tmp")
        self.scratch = "/tmp" if walled else os.path.join(self.path, ".tmp")
        self._walled = walled
        self._user = user
        os.makedirs(self.scratch, exist_ok=True)

    def lay_out(self, files: Mapping[str, bytes]) -> None:
        """Write the files, by relative path, and give all to the program's user. Raises `OSError`."""
        for name, content in files.items():
            path = os.path.join(self.path, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        if self._user is None:
            return
        for top in (self.path, self.scratch):
            for parent, folders, names in os.walk(top):
                for entry in (parent, *(os.path.join(parent, name) for name in (*folders, *names))):
                    os.lchown(entry, self._user, self._user)

    def gather(self, limit: int, count: int) -> dict[str, bytes]:
        """Return regular files by relative path, as many as fit `limit` bytes and `count` files and folders.

        No link is followed. What is no regular file, lies too deep or has a name that is no text is left out.
        """
        found: dict[str, bytes] = {}
        folders = {""}
        for entry in self._regular():
            name = os.path.relpath(entry.path, self.path)
            size = entry.stat(follow_symlinks=False).st_size
            around = folders | _folders(name)
            if blocks(size) > limit or len(found) + len(around) > count or not os.access(entry.path, os.R_OK):
                continue
            with open(entry.path, "rb") as file:
                found[name] = file.read(size)
            limit -= blocks(size)
            folders = around
        return dict(sorted(found.items()))

    def entries(self) -> int:
        """Return the files and folders there are, as the file system counts them; 0 where it is not the box's."""
        if not self._walled:
            return 0
        return sum(state.f_files - state.f_ffree - 1 for state in (os.statvfs(self.path), os.statvfs(self.scratch)))

    def remove(self) -> None:
        """Leave nothing behind; what is behind walls goes with them."""
        if not self._walled:
            # However deep, and whatever the program made of its permissions.
            silent = [(os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)]
            command = ["sh", "-c", _REMOVE, self.path]
            os.waitpid(os.posix_spawn("/bin/sh", command, {"PATH": "/usr/bin:/bin"}, file_actions=silent), 0)

    def _regular(self) -> Iterator[os.DirEntry[str]]:
        folders = [(self.path, 0)]
        while folders:
            folder, depth = folders.pop()
            if not os.access(folder, os.R_OK | os.X_OK) or folder == self.scratch:
                continue
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if not _is_text(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False) and depth < _DEPTH:
                        folders.append((entry.path, depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        yield entry


def blocks(size: int) -> int:
    """Return the bytes that a file of `size` bytes takes."""
    return -(-size // _BLOCK) * _BLOCK


def _folders(name: str) -> set[str]:
    """Return the folders that a file lies in, from the box down."""
    parts = name.split("/")[:-1]
    return {"/".join(parts[:depth]) for depth in range(len(parts) + 1)}


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
