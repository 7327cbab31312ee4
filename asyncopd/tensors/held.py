"""A copy of the weights that a learner sent last, so that it can send them again when it has moved on.

Shapes: N bytes of the flat buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import torch
import xxhash

from asyncopd.records import TensorEntry, Version, WeightFile
from asyncopd.tensors.mapped import dtype_name, raw_bytes, view

_ALIGNMENT = 64


class Held:
    """One flat buffer of main memory, of the size that `flat_size` says."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._weights: WeightFile | None = None

    def has(self, version: Version) -> bool:
        """Tell whether the copy is of `version`."""
        return self._weights is not None and self._weights.version == version

    def weights(self, path: str) -> WeightFile:
        """Return what the copy is to be announced as, at the rendezvous `path`."""
        assert self._weights is not None, "nothing is held yet"
        return msgspec.structs.replace(self._weights, path=path)

    @property
    def flat_N(self) -> torch.Tensor:
        """The buffer's bytes, shared."""
        return torch.frombuffer(self._data, dtype=torch.uint8)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, view), in order."""
        for entry in self.weights("").tensors:
            yield entry.name, view(self._data, entry)

    def take(self, version: Version, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Copy the named `tensors`, which are `version`. Raises `ValueError` for a dtype that cannot be published."""
        self._weights = None
        size = sum(aligned(tensor.nbytes) for _, tensor in tensors)
        if len(self._data) != size:
            self._data = bytearray(size)
        flat_N = self.flat_N.numpy()
        hasher = xxhash.xxh3_64()
        entries = []
        offset = 0
        for name, tensor in tensors:
            data = raw_bytes(name, tensor)
            flat_N[offset : offset + data.nbytes] = data
            hasher.update(data.data)
            shape = tuple(tensor.shape)
            entries.append(
                TensorEntry(name=name, dtype=dtype_name(tensor), shape=shape, offset=offset, nbytes=data.nbytes)
            )
            offset += aligned(data.nbytes)
        checksum = hasher.intdigest()
        self._weights = WeightFile(
            version=version,
            path="",
            format="broadcast",
            tensors=tuple(entries),
            checksum=checksum,
            dense_checksum=checksum,
        )


def flat_size(weights: WeightFile) -> int:
    """Return N for the tensors of `weights`."""
    return sum(aligned(entry.nbytes) for entry in weights.tensors)


def aligned(nbytes: int) -> int:
    """Return the bytes that a tensor of `nbytes` takes, so that the next one begins where any dtype may."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
