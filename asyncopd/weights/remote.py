"""A directory for weights in flight below a URL, where nobody can hold a lock."""

from __future__ import annotations

import socket
from pathlib import Path

import xxhash
from fsspec.core import url_to_fs


class RemoteDirectory:
    """An empty directory below the URL `parent`, at the URL `path`.

    Its name is the run's, so that a run that is killed and resumed removes what it left.
    """

    def __init__(self, parent: str, run_directory: Path) -> None:
        run = xxhash.xxh3_64_hexdigest(f"{socket.gethostname()}:{run_directory.resolve()}".encode())
        self.path = f"{parent.rstrip('/')}/asyncopd-weights-{run}"
        self._filesystem, self._name = url_to_fs(self.path)
        if self._filesystem.exists(self._name):
            self.close()
        self._filesystem.makedirs(self._name, exist_ok=True)

    def close(self) -> None:
        """Remove the directory."""
        self._filesystem.rm(self._name, recursive=True)
