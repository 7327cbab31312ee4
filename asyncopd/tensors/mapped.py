"""Named tensors in one file that other processes map: a header, then the tensors' bytes.

A file appears whole or not at all, and a mapping of it stays valid when the next one takes its name.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash

from asyncopd.records import TensorEntry, Version, WeightFile

_HEADER = struct.Struct("<8sqQQ")  # magic, packed version, xxh3-64 of the tensors' bytes, their end in the file
_MAGIC = b"opdmap01"
_ALIGNMENT = 64

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class TornWeights(RuntimeError):
    """A weight file is not what its manifest says; the message names the file and what differs."""


def write_tensors(path: str | Path, version: Version, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> WeightFile:
    """Write `named_tensors` (float32 or bfloat16, any device) to `path`, replacing it in one step.

    Raises `ValueError` for another dtype and `OSError` where the directory is full or cannot be written;
    whatever `path` held before is then untouched.
    """
    partial = Path(f"{path}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            entries, checksum = _write_body(file, named_tensors)
            end = file.tell()
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, version.pack(), checksum, end))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return WeightFile(
        version=version,
        path=str(path),
        format="mapped",
        tensors=tuple(entries),
        checksum=checksum,
        dense_checksum=checksum,
    )


def _write_body(file: BinaryIO, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[TensorEntry], int]:
    hasher = xxhash.xxh3_64()
    entries: list[TensorEntry] = []
    file.seek(_HEADER.size)
    for name, tensor in named_tensors:
        if tensor.dtype not in _NAMES:
            raise ValueError(f"weights: {name} is {tensor.dtype}; only {', '.join(_DTYPES)} can be published")
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.seek(offset)
        file.write(data)
        hasher.update(data)
        entries.append(
            TensorEntry(
                name=name, dtype=_NAMES[tensor.dtype], shape=tuple(tensor.shape), offset=offset, nbytes=data.nbytes
            )
        )
    return entries, hasher.intdigest()


def map_tensors(weights: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Verify the file `weights`, then return an iterator of (name, view) in its order.

    A view shares the mapped pages and keeps them alive; writing to it changes no file. Raises `TornWeights`,
    before anything is returned, if the file is missing or its size, version or bytes are not as `weights` says.
    """
    mapped = _map(weights)
    _verify(weights, mapped)
    return ((entry.name, _view(mapped, entry)) for entry in weights.tensors)


def _map(weights: WeightFile) -> mmap.mmap:
    try:
        with Path(weights.path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER.size:
                raise TornWeights(f"{weights.path}: {size} bytes are too few for a header of {_HEADER.size}")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError as error:
        raise TornWeights(f"{weights.path}: the file of version {weights.version} is gone") from error


def _verify(weights: WeightFile, mapped: mmap.mmap) -> None:
    def check(what: str, found: object, expected: object) -> None:
        if found != expected:
            raise TornWeights(f"{weights.path}: {what} is {found}, the manifest says {expected}")

    magic, packed, checksum, end = _HEADER.unpack_from(mapped)
    check("the header", magic, _MAGIC)
    check("the version", str(Version.unpack(packed)), str(weights.version))
    check("the size in bytes", len(mapped), end)
    check("the end of the last tensor", end, max((e.offset + e.nbytes for e in weights.tensors), default=_HEADER.size))
    check("the checksum in the header", f"{checksum:016x}", f"{weights.checksum:016x}")
    hasher = xxhash.xxh3_64()
    with memoryview(mapped) as data:
        for entry in weights.tensors:
            hasher.update(data[entry.offset : entry.offset + entry.nbytes])
    check("the checksum of the tensors", hasher.hexdigest(), f"{weights.checksum:016x}")


def _view(mapped: mmap.mmap, entry: TensorEntry) -> torch.Tensor:
    dtype = _DTYPES[entry.dtype]
    count = entry.nbytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.offset).view(entry.shape)
