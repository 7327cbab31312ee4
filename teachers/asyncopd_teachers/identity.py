"""A name for all that a local model's numbers depend on."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import xxhash

# Weights, configuration, tokenizer and template; what else lies there changes the name, never the numbers.
_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def checkpoint_hash(directory: Path, *others: Path) -> str:
    """Return 32 hexadecimal digits over names and contents of a checkpoint's files, and contents of `others`.

    A file is read again only if its size or time of change differ.
    """
    digest = xxhash.xxh3_128()
    for path in sorted(path for pattern in _PATTERNS for path in directory.glob(pattern)):
        digest.update(f"{path.name}={_of(path)};".encode())
    for path in others:
        digest.update(f"{_of(path)};".encode())
    return digest.hexdigest()


def _of(path: Path) -> str:
    status = path.stat()
    return _content_hash(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _content_hash(path: Path, size: int, changed_ns: int) -> str:
    """Hash a file's bytes; size and time are the cache's key only."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
