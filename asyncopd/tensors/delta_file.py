"""A file of deltas: a header, then for each tensor that changed what `delta.encode` says of it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec
import xxhash

from asyncopd.records import TensorEntry, Version, WeightFile
from asyncopd.tensors.files import check, check_body, read_file, whole_file

# magic, packed version, packed base, checksum of the deltas' bytes, of all tensors after them, end of the file
_HEADER = struct.Struct("<8sqqQQQ")
_MAGIC = b"opddlt01"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What changed of one tensor; `dtype` and `shape` are the tensor's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What turns version `base` into `version`, whose tensors then have `dense_checksum`."""

    base: Version
    version: Version
    changes: tuple[Change, ...]
    dense_checksum: int


def write_delta(path: str, delta: Delta) -> WeightFile:
    """Write `delta` to `path`, on any filesystem, replacing it in one step. Raises `OSError`."""
    hasher = xxhash.xxh3_64()
    for change in delta.changes:
        hasher.update(change.data)
    entries = tuple(_entries(delta.changes))
    end = entries[-1].offset + entries[-1].nbytes if entries else _HEADER.size
    header = (_MAGIC, delta.version.pack(), delta.base.pack(), hasher.intdigest(), delta.dense_checksum, end)
    with whole_file(path) as file:
        file.write(_HEADER.pack(*header))
        for change in delta.changes:
            file.write(change.data)
    return WeightFile(
        version=delta.version,
        path=path,
        format="delta",
        tensors=entries,
        checksum=hasher.intdigest(),
        dense_checksum=delta.dense_checksum,
        base=delta.base,
    )


def _entries(changes: Iterable[Change]) -> Iterator[TensorEntry]:
    offset = _HEADER.size
    for change in changes:
        nbytes = len(change.data)
        yield TensorEntry(name=change.name, dtype=change.dtype, shape=change.shape, offset=offset, nbytes=nbytes)
        offset += nbytes


def read_delta(weights: WeightFile) -> Iterator[tuple[str, memoryview]]:
    """Verify the file, then return an iterator of (tensor's name, what changed of it) in its order.

    Raises `TornWeights`, before anything is returned, if the file is missing or not as `weights` says.
    """
    assert weights.base is not None, f"{weights.path} is no delta"
    data = read_file(weights, _HEADER.size)
    magic, version, base, checksum, dense_checksum, end = _HEADER.unpack_from(data)
    check(weights, "the header", magic, _MAGIC)
    check(weights, "the version", str(Version.unpack(version)), str(weights.version))
    check(weights, "the version it changes", str(Version.unpack(base)), str(weights.base))
    check(weights, "the size in bytes", len(data), end)
    last = max((entry.offset + entry.nbytes for entry in weights.tensors), default=_HEADER.size)
    check(weights, "the end of the last tensor", end, last)
    check(weights, "the checksum in the header", f"{checksum:016x}", f"{weights.checksum:016x}")
    check(weights, "the checksum of all tensors", f"{dense_checksum:016x}", f"{weights.dense_checksum:016x}")
    check_body(weights, data)
    view = memoryview(data)
    return ((entry.name, view[entry.offset : entry.offset + entry.nbytes]) for entry in weights.tensors)
