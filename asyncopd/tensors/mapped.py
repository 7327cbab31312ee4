"""Named tensors in one file that other processes map: a header, then the tensors' bytes.

A file appears whole or not at all, and a mapping of it stays valid when the next one takes its name.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
import xxhash

from asyncopd.records import TensorEntry, Version, WeightFile
from asyncopd.tensors.files import check, check_body, read_file, whole_file

_HEADER = struct.Struct("<8sqQQ")  # magic, packed version, xxh3-64 of the tensors' bytes, their end in the file
_MAGIC = b"opdmap01"
_ALIGNMENT = 64
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_tensors(path: str | Path, version: Version, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> WeightFile:
    """Write `named_tensors` (float32 or bfloat16, any device) to `path`, replacing it in one step.

    Raises `ValueError` for another dtype and `OSError` where the directory is full or cannot be written;
    whatever `path` held before is then untouched.
    """
    with whole_file(str(path)) as file:
        entries, checksum = _write_body(file, named_tensors)
        end = file.tell()
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, version.pack(), checksum, end))
    return WeightFile(
        version=version,
        path=str(path),
        format="mapped",
        tensors=tuple(entries),
        checksum=checksum,
        dense_checksum=checksum,
    )


def _write_body(file: IO[bytes], named_tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[TensorEntry], int]:
    hasher = xxhash.xxh3_64()
    entries: list[TensorEntry] = []
    file.seek(_HEADER.size)
    for name, tensor in named_tensors:
        data = raw_bytes(name, tensor)
        offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.seek(offset)
        file.write(data.data)
        hasher.update(data.data)
        entries.append(
            TensorEntry(
                name=name, dtype=dtype_name(tensor), shape=tuple(tensor.shape), offset=offset, nbytes=data.nbytes
            )
        )
    return entries, hasher.intdigest()


def map_tensors(weights: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Verify the file `weights`, then return an iterator of (name, view) in its order.

    A view shares the mapped pages and keeps them alive; writing to it changes no file. Raises `TornWeights`,
    before anything is returned, if the file is missing or its size, version or bytes are not as `weights` says.
    """
    data = read_file(weights, _HEADER.size)
    magic, packed, checksum, end = _HEADER.unpack_from(data)
    check(weights, "the header", magic, _MAGIC)
    check(weights, "the version", str(Version.unpack(packed)), str(weights.version))
    check(weights, "the size in bytes", len(data), end)
    last = max((entry.offset + entry.nbytes for entry in weights.tensors), default=_HEADER.size)
    check(weights, "the end of the last tensor", end, last)
    check(weights, "the checksum in the header", f"{checksum:016x}", f"{weights.checksum:016x}")
    check_body(weights, data)
    return ((entry.name, view(data, entry)) for entry in weights.tensors)


def raw_bytes(name: str, tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a tensor as a flat uint8 array, on this machine's memory. Raises `ValueError`."""
    if tensor.dtype not in _NAMES:
        raise ValueError(f"weights: {name} is {tensor.dtype}; only {', '.join(_DTYPES)} can be published")
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name that a `TensorEntry` gives the dtype of `tensor`."""
    return _NAMES[tensor.dtype]


def view(data: mmap.mmap | bytearray, entry: TensorEntry) -> torch.Tensor:
    """Return the tensor of a verified file's bytes, sharing them."""
    dtype = _DTYPES[entry.dtype]
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=entry.nbytes // dtype.itemsize, offset=entry.offset).view(
        entry.shape
    )
