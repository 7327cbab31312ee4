"""The weights that an engine comes to serve, from the tensors that reached it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from asyncopd.tensors.adapter import BASE, Merged, adapted, is_adapter


class Received:
    """For an engine that was started from `checkpoint` and serves in `dtype`.

    What arrives are all weights, or an adapter, which is merged into those of the checkpoint.
    """

    def __init__(self, checkpoint: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._base: torch.Tensor | None = None  # the digest that was found right

    def weights(self, arrived: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return all weights by name. Raises `WrongBase`."""
        if not is_adapter(arrived):
            return arrived
        merged = Merged(self._checkpoint, arrived, self._dtype)
        if self._base is None or not torch.equal(self._base, arrived[BASE]):
            merged.check_base(arrived[BASE])
            self._base = arrived[BASE].clone()
        return merged


def weights_of(arrived: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the weights that depend on the tensors `names` of those that arrived."""
    return adapted(names) if is_adapter(arrived) else list(names)
