"""A published set of weights, and what publishing it cost."""

from __future__ import annotations

import msgspec

from asyncopd.records.version import Version


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies in a manifest's file: little-endian, contiguous, `offset` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One published set of weights, in one file that every receiver can map.

    `checksum` is xxh3-64 over the tensors' bytes in order. Names are those of the Hugging Face checkpoint.
    """

    version: Version
    path: str
    tensors: tuple[TensorEntry, ...]
    checksum: int


class PublishReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a publish cost: seconds of the sender, of the pause that engines felt, and bytes moved."""

    version: Version
    send_seconds: float
    pause_seconds: float
    bytes: int
