"""A published set of weights, and what publishing it cost."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncopd.records.version import Version

WeightFormat = Literal["mapped", "delta", "safetensors", "broadcast"]
"""`mapped`: all tensors, ready to be mapped. `delta`: what changed since `base`. `safetensors`: a Hugging Face
checkpoint. `broadcast`: nothing on a disk, the bytes come through a process group."""


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies in a weight file: `nbytes` from byte `offset` on; `shape` and `dtype` are the tensor's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class WeightFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of weights. `path` is of this machine, or a URL that fsspec opens.

    `checksum` is xxh3-64 over the entries' bytes in order; `dense_checksum` the same over all tensors of
    `version` in serving dtype, so that whoever rebuilt them from deltas can prove it. Names are those of the
    Hugging Face checkpoint. `base` is the version that a delta changes.
    """

    version: Version
    path: str
    format: WeightFormat
    tensors: tuple[TensorEntry, ...]
    checksum: int
    dense_checksum: int
    base: Version | None = None

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.tensors)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """How to come to `version`: a file of all tensors, then the deltas since, oldest first.

    Who has an earlier version of the chain needs the files after it only.
    """

    files: tuple[WeightFile, ...]

    def __post_init__(self) -> None:
        versions = [file.version for file in self.files]
        assert [file.base for file in self.files] == [None, *versions[:-1]], f"no chain of weight files: {versions}"

    @property
    def version(self) -> Version:
        return self.files[-1].version

    @property
    def checksum(self) -> int:
        """Of all tensors, in serving dtype."""
        return self.files[-1].dense_checksum

    def after(self, version: Version | None) -> tuple[WeightFile, ...]:
        """Return the files that bring `version` to this one; all of them for a version that is not in the chain."""
        versions = [file.version for file in self.files]
        return self.files[versions.index(version) + 1 :] if version in versions else self.files


class SendOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a learner is asked to send, to a file named `path` and an ending of the sender's.

    One asked for a delta answers with all tensors, in the format `dense`, where it does not have `base`, is given
    none, or the delta is not worth it; deltas on what it sends are to be expected then.
    """

    version: Version
    path: str
    format: WeightFormat
    base: Version | None = None
    dense: Literal["mapped", "safetensors"] = "mapped"


class PublishReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a publish cost: seconds of the sender, of preparing while engines generate, of the pause they felt.

    `bytes` were moved to each engine; all tensors are `dense_bytes`. `failed` names the engines that did not
    come to `version`, each with the reason.
    """

    version: Version
    send_seconds: float
    prepare_seconds: float
    pause_seconds: float
    bytes: int
    dense_bytes: int
    failed: dict[str, str] = {}
