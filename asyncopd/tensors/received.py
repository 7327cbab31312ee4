"""The weights that an engine comes to serve, from the tensors that reached it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from asyncopd.tensors.adapter import BASE, Merged, adapted, is_adapter


class Received:
    """Of an engine that was started from `checkpoint` and serves in `dtype`.

    What arrives are all weights, or an adapter, which is merged into those of the checkpoint.
    """

    def __init__(self, checkpoint: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._adapted: list[str] | None = []  # by the adapter before; None after an update of all weights
        self._base: torch.Tensor | None = None  # the digest that was found right

    def weights(
        self, arrived: Mapping[str, torch.Tensor], changed: Iterable[str]
    ) -> tuple[Mapping[str, torch.Tensor], list[str]]:
        """Return all weights, and the names of those that differ from what the arrival before made.

        `changed` are the names of the tensors that arrived anew. Raises `WrongBase`.
        """
        if not is_adapter(arrived):
            before, self._adapted = self._adapted, None
            return arrived, list(arrived) if before else list(changed)
        merged = Merged(self._checkpoint, arrived, self._dtype)
        if self._base is None or not torch.equal(self._base, arrived[BASE]):
            merged.check_base(arrived[BASE])
            self._base = arrived[BASE].clone()
        before, self._adapted = self._adapted, adapted(arrived)
        if before is None:
            return merged, list(merged)
        left = [name for name in before if name not in self._adapted]
        return merged, [*left, *adapted(changed)]
