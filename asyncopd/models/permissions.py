"""Who may read a saved model."""

from __future__ import annotations

from pathlib import Path


def follow_umask(directory: Path) -> None:
    """Give the files below `directory`, made by this process, the permissions that its umask gives.

    Where they differ: safetensors makes its files readable by their owner alone.
    """
    # The directory itself was made under the umask, which cannot be read without changing it for all threads.
    mode = directory.stat().st_mode & 0o666
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(mode)
