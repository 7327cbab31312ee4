"""Files of weights on any filesystem: each appears whole or not at all, and is believed only as its manifest says."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from typing import IO

import xxhash
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from asyncopd.records import WeightFile


class TornWeights(RuntimeError):
    """A weight file is not what its manifest says; the message names the file and what differs."""


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[IO[bytes]]:
    """Give a file to write, which takes the name `path` in one step when the block ends well.

    Where it does not, whatever `path` held before is untouched and nothing else is left. An `OSError` names `path`.
    """
    filesystem, name = url_to_fs(path)
    partial = f"{name}.{os.getpid()}.part"
    try:
        try:
            with filesystem.open(partial, "wb") as file:
                yield file
            filesystem.mv(partial, name)
        finally:
            if filesystem.exists(partial):
                filesystem.rm_file(partial)
    except OSError as error:
        # A full disk is met in a write, whose error does not say of what file.
        problem = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem += "; weights.dir can name a roomier place"
        raise OSError(error.errno, problem, path) from error


def read_file(weights: WeightFile, header_size: int) -> mmap.mmap | bytearray:
    """Return the bytes of the file: mapped privately where it is of this machine, so that writing changes no file.

    Raises `TornWeights` where there is none, or where it ends before its header or last tensor does.
    """
    filesystem, name = url_to_fs(weights.path)
    try:
        with filesystem.open(name, "rb") as file:
            size = filesystem.size(name)
            least = max([header_size, *(entry.offset + entry.nbytes for entry in weights.tensors)])
            if size < least:
                raise TornWeights(f"{weights.path}: the size in bytes is {size}, the last tensor ends at {least}")
            if isinstance(filesystem, LocalFileSystem):
                return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
            data = bytearray(size)
            file.readinto(data)
            return data
    except FileNotFoundError as error:
        raise TornWeights(f"{weights.path}: the file of version {weights.version} is gone") from error


def check(weights: WeightFile, what: str, found: object, expected: object) -> None:
    """Raise `TornWeights` where `found` is not as `expected` by the manifest."""
    if found != expected:
        raise TornWeights(f"{weights.path}: {what} is {found}, the manifest says {expected}")


def check_body(weights: WeightFile, data: mmap.mmap | bytearray) -> None:
    """Raise `TornWeights` unless the entries' bytes have the checksum that the manifest says."""
    hasher = xxhash.xxh3_64()
    with memoryview(data) as view:
        for entry in weights.tensors:
            hasher.update(view[entry.offset : entry.offset + entry.nbytes])
    check(weights, "the checksum of the tensors", hasher.hexdigest(), f"{weights.checksum:016x}")
