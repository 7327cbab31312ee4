"""All tensors at a version, that follow a chain of weight files on one side of an update and lead it on the other.

Invariants:
- `tensors` are those of `version`, or there are none;
- nothing is changed before every file to be read is verified; what goes wrong after that empties the shadow, so
  that it starts afresh from a file of all tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import xxhash

from asyncopd.records import Manifest, Version, WeightFile
from asyncopd.tensors.broadcast import BroadcastReceiver
from asyncopd.tensors.delta import BadDelta, apply, encode, words
from asyncopd.tensors.delta_file import Change, Delta, read_delta
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.mapped import dtype_name, raw_bytes
from asyncopd.tensors.reader import open_weights


class Shadow:
    """Empty at first. `tensors` are named as in the Hugging Face checkpoint, in serving dtype; do not write to them.

    Those that no delta has changed yet are views of a mapped file. The others have memory of their own, which is
    kept for as long as the shadow: to map anew and have each page copied costs as much as all the rest.
    `broadcasts` is where tensors come by that are in no file.
    """

    def __init__(self, broadcasts: BroadcastReceiver | None = None) -> None:
        self._broadcasts = broadcasts or BroadcastReceiver()
        self.version: Version | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        self._own: set[str] = set()

    # --- the engine's side: following ---------------------------------------------------------------

    def follow(self, manifest: Manifest) -> tuple[str, ...]:
        """Come to the version of `manifest`; return the names of the tensors that changed, and of new ones.

        Raises `TornWeights`: for a file that is torn, with nothing changed; for tensors that do not come out as the
        manifest says, with the shadow empty.
        """
        files = self._files(manifest)
        all_tensors = [self._open(file) for file in files if file.base is None]
        deltas = [(file, read_delta(file)) for file in files if file.base is not None]
        self.version = None
        changed: dict[str, None] = {}
        for tensors in all_tensors:
            changed |= dict.fromkeys(self._replace(tensors))
        try:
            for file, delta in deltas:
                changed |= dict.fromkeys(self._apply(file, delta))
            if deltas and self.checksum() != manifest.checksum:
                raise TornWeights(
                    f"{files[-1].path}: after it the tensors have the checksum {self.checksum():016x}, "
                    f"the manifest says {manifest.checksum:016x}; they are discarded"
                )
        except TornWeights:
            self.tensors, self._own = {}, set()
            raise
        self.version = manifest.version
        return tuple(changed)

    def _files(self, manifest: Manifest) -> tuple[WeightFile, ...]:
        """Return what is to be read. Of a broadcast every member takes part, whether it needs to or not."""
        newest = manifest.files[-1]
        if newest.format == "broadcast" and not self._broadcasts.took(newest):
            return manifest.files
        return manifest.after(self.version)

    def _open(self, file: WeightFile) -> dict[str, torch.Tensor]:
        """Return all tensors of a file, or from a broadcast."""
        return dict(self._broadcasts.receive(file) if file.format == "broadcast" else open_weights(file))

    def _replace(self, tensors: dict[str, torch.Tensor]) -> list[str]:
        """Become `tensors`; return the names of those that are not as before."""
        before, self.tensors = self.tensors, tensors
        changed = [name for name, tensor in tensors.items() if not _same_bits(before.get(name), tensor)]
        self._own &= {name for name, tensor in tensors.items() if _alike(before.get(name), tensor)}
        for name in self._own:
            before[name].copy_(tensors[name])
            tensors[name] = before[name]
        return changed

    def checksum(self) -> int:
        """Return xxh3-64 of all tensors' bytes, in order."""
        hasher = xxhash.xxh3_64()
        for name, tensor in self.tensors.items():
            hasher.update(raw_bytes(name, tensor).data)
        return hasher.intdigest()

    def _apply(self, file: WeightFile, delta: Iterable[tuple[str, memoryview]]) -> Iterator[str]:
        for name, data in delta:
            try:
                if name not in self._own:
                    self.tensors[name] = self.tensors[name].clone()
                    self._own.add(name)
                apply(self._words(name), data)
            except (BadDelta, KeyError) as error:
                raise TornWeights(f"{file.path}: {name} cannot be changed as it says: {error}") from error
            yield name

    def _words(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        return words(raw_bytes(name, tensor), tensor.itemsize)

    # --- the learner's side: leading ----------------------------------------------------------------

    def take(self, version: Version, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Become a copy of `named_tensors`."""
        if self.tensors:
            self.diff(version, named_tensors, limit=0)
            return
        self.tensors = {name: tensor.detach().cpu().clone() for name, tensor in named_tensors}
        self._own = set(self.tensors)
        self.version = version

    def diff(self, version: Version, named_tensors: Iterable[tuple[str, torch.Tensor]], limit: int) -> Delta | None:
        """Become a copy of `named_tensors`, the same ones at `version`, and return what changed.

        None, and the copy is made all the same, where that takes over `limit` bytes. Raises `ValueError` for other
        names, dtypes or shapes.
        """
        base, self.version = self.version, None
        changes: list[Change] | None = [] if base is not None and limit > 0 else None
        hasher = xxhash.xxh3_64()
        seen: list[str] = []
        for name, tensor in named_tensors:
            new = raw_bytes(name, tensor)
            self._check_same(name, tensor)
            seen.append(name)
            hasher.update(new.data)
            data = encode(self._words(name), words(new, tensor.itemsize), limit) if changes is not None else None
            if data is None:
                self._words(name)[:] = words(new, tensor.itemsize)
                changes = None
            elif changes is not None and data:
                limit -= len(data)
                changes.append(Change(name=name, dtype=dtype_name(tensor), shape=tuple(tensor.shape), data=data))
        if seen != list(self.tensors):
            missing = ", ".join(self.tensors.keys() - set(seen)) or "none"
            raise ValueError(
                f"weights: not the tensors before, in their order, for version {version}; {missing} missing"
            )
        self.version = version
        if changes is None:
            return None
        assert base is not None
        return Delta(base=base, version=version, changes=tuple(changes), dense_checksum=hasher.intdigest())

    def _check_same(self, name: str, tensor: torch.Tensor) -> None:
        before = self.tensors.get(name)
        if not _alike(before, tensor):
            was = "missing" if before is None else f"{before.dtype} {tuple(before.shape)}"
            raise ValueError(f"weights: {name} is {tensor.dtype} {tuple(tensor.shape)}, before it was {was}")


def _alike(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and (one.dtype, one.shape) == (other.dtype, other.shape)


def _same_bits(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    if one is None or not _alike(one, other):
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
