"""All tensors in one safetensors file, as Hugging Face checkpoints have them, on any filesystem."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash

from asyncopd.records import TensorEntry, Version, WeightFile
from asyncopd.tensors.files import TornWeights, check, check_body, read_file, whole_file
from asyncopd.tensors.mapped import dtype_name, raw_bytes, view

# The format: a little-endian uint64 of the size of a JSON header, the header, the tensors' bytes without gaps.
# The library would hold a second copy of all tensors to write them anywhere but into a local file.
_SIZE = 8
_ALIGNMENT = 8
_DTYPES = {"float32": "F32", "bfloat16": "BF16"}


def write_checkpoint(path: str, version: Version, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> WeightFile:
    """Write `named_tensors` (float32 or bfloat16) to `path`, replacing it in one step.

    Raises `ValueError` for another dtype and `OSError` where the file cannot be written.
    """
    entries, bodies = _lay_out(named_tensors)
    header = _header(version, entries)
    hasher = xxhash.xxh3_64()
    with whole_file(path) as file:
        file.write(header)
        for data in bodies:
            file.write(data.data)
            hasher.update(data.data)
    return WeightFile(
        version=version,
        path=path,
        format="safetensors",
        tensors=tuple(msgspec.structs.replace(entry, offset=len(header) + entry.offset) for entry in entries),
        checksum=hasher.intdigest(),
        dense_checksum=hasher.intdigest(),
    )


def _lay_out(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[TensorEntry], list[np.ndarray]]:
    """Return entries with offsets from the first tensor, and the tensors' bytes; both must be known for a header."""
    entries: list[TensorEntry] = []
    bodies = []
    offset = 0
    for name, tensor in named_tensors:
        data = raw_bytes(name, tensor)
        shape = tuple(tensor.shape)
        entries.append(TensorEntry(name=name, dtype=dtype_name(tensor), shape=shape, offset=offset, nbytes=data.nbytes))
        bodies.append(data)
        offset += data.nbytes
    return entries, bodies


def _header(version: Version, entries: Iterable[TensorEntry]) -> bytes:
    described: dict[str, Any] = {"__metadata__": {"format": "pt", "version": str(version)}}
    for entry in entries:
        described[entry.name] = {
            "dtype": _DTYPES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (entry.offset, entry.offset + entry.nbytes),
        }
    text = json.dumps(described).encode()
    text += b" " * (-(_SIZE + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(_SIZE, "little") + text


def read_checkpoint(weights: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Verify the file, then return an iterator of (name, view) in its order; writing to a view changes no file.

    Raises `TornWeights`, before anything is returned, if the file is missing or not as `weights` says.
    """
    data = read_file(weights, _SIZE)
    body = _SIZE + int.from_bytes(data[:_SIZE], "little")
    check(weights, "the start of the first tensor", body, min((e.offset for e in weights.tensors), default=body))
    last = max((entry.offset + entry.nbytes for entry in weights.tensors), default=body)
    check(weights, "the size in bytes", len(data), last)
    try:
        described = json.loads(data[_SIZE:body])
    except ValueError as error:
        raise TornWeights(f"{weights.path}: the header is no JSON: {error}") from error
    check(weights, "the version", described["__metadata__"]["version"], str(weights.version))
    check_body(weights, data)
    return ((entry.name, view(data, entry)) for entry in weights.tensors)
