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

    `broadcasts` is where tensors come by that are in no file.
    """

    def __init__(self, broadcasts: BroadcastReceiver | None = None) -> None:
        self._broadcasts = broadcasts or BroadcastReceiver()
        self.version: Version | None = None
        self.tensors: dict[str, torch.Tensor] = {}

    # --- the engine's side: following ---------------------------------------------------------------

    def follow(self, manifest: Manifest) -> tuple[str, ...]:
        """Come to the version of `manifest`; return the names of the tensors that may have changed.

        A file of all tensors is mapped, so that only what deltas change of it takes memory. Raises `TornWeights`:
        for a file that is torn, with nothing changed; for tensors that do not come out as the manifest says, with
        the shadow empty.
        """
        files = manifest.after(self.version)
        if not files:
            return ()
        all_tensors = self._open(files[0]) if files[0].base is None else None
        deltas = [(file, read_delta(file)) for file in files if file.base is not None]
        if all_tensors is not None:
            self.tensors = all_tensors
        changed = list(self.tensors) if all_tensors is not None else []
        self.version = None
        try:
            for file, delta in deltas:
                changed += self._apply(file, delta)
            if deltas and self.checksum() != manifest.checksum:
                raise TornWeights(
                    f"{files[-1].path}: after it the tensors have the checksum {self.checksum():016x}, "
                    f"the manifest says {manifest.checksum:016x}; they are discarded"
                )
        except TornWeights:
            self.tensors = {}
            raise
        self.version = manifest.version
        return tuple(dict.fromkeys(changed))

    def _open(self, file: WeightFile) -> dict[str, torch.Tensor]:
        """Return all tensors of a file, or from a broadcast."""
        return dict(self._broadcasts.receive(file) if file.format == "broadcast" else open_weights(file))

    def checksum(self) -> int:
        """Return xxh3-64 of all tensors' bytes, in order."""
        hasher = xxhash.xxh3_64()
        for name, tensor in self.tensors.items():
            hasher.update(raw_bytes(name, tensor).data)
        return hasher.intdigest()

    def _apply(self, file: WeightFile, delta: Iterable[tuple[str, memoryview]]) -> Iterator[str]:
        for name, data in delta:
            try:
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
        self.version = version

    def diff(self, version: Version, named_tensors: Iterable[tuple[str, torch.Tensor]], limit: int) -> Delta | None:
        """Become a copy of `named_tensors`, the same ones at `version`, and return what changed.

        None, and the copy is made all the same, where that takes over `limit` bytes. Raises `ValueError` for other
        names, dtypes or shapes.
        """
        base, self.version = self.version, None
        changes: list[Change] | None = [] if base is not None and limit > 0 else None
        hasher = xxhash.xxh3_64()
        seen = set()
        for name, tensor in named_tensors:
            new = raw_bytes(name, tensor)
            self._check_same(name, tensor)
            seen.add(name)
            hasher.update(new.data)
            data = encode(self._words(name), words(new, tensor.itemsize), limit) if changes is not None else None
            if data is None:
                self._words(name)[:] = words(new, tensor.itemsize)
                changes = None
            elif changes is not None and data:
                limit -= len(data)
                changes.append(Change(name=name, dtype=dtype_name(tensor), shape=tuple(tensor.shape), data=data))
        if missing := self.tensors.keys() - seen:
            raise ValueError(f"weights: {sorted(missing)[0]} is missing from version {version}")
        self.version = version
        if changes is None:
            return None
        assert base is not None
        return Delta(base=base, version=version, changes=tuple(changes), dense_checksum=hasher.intdigest())

    def _check_same(self, name: str, tensor: torch.Tensor) -> None:
        mine = self.tensors.get(name)
        if mine is None or (mine.dtype, mine.shape) != (tensor.dtype, tensor.shape):
            raise ValueError(f"weights: {name} is {tensor.dtype} {tuple(tensor.shape)}, before it was {mine}")
