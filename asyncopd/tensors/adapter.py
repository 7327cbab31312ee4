"""A low-rank adapter as it travels: two thin matrices for each weight that it changes, and whose base they are for.

The weight `X.weight` becomes `X.weight + X.lora_B.weight @ X.lora_A.weight`, computed in float32 and rounded to the
serving dtype once; the adapter's scale is in `lora_B` already. Learner and engines merge by the same function, so
that both have the same bits.

Shapes: O outputs and I inputs of a layer, R the adapter's rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
import xxhash

from asyncopd.tensors.mapped import raw_bytes

BASE = "adapter.base"
"""The name of the tensor that tells one base from another, see `base_digest`."""

_DOWN = ".lora_A.weight"
_UP = ".lora_B.weight"
_DIGEST_PIECES = 4


class WrongBase(RuntimeError):
    """An adapter is not for the checkpoint that is served; the message names the weight and what differs."""


def is_adapter(names: Iterable[str]) -> bool:
    """Tell whether tensors of these names are an adapter."""
    return BASE in names


def adapted(names: Iterable[str]) -> list[str]:
    """Return the names of the weights that the adapter's tensors `names` change."""
    layers = {name.removesuffix(_DOWN).removesuffix(_UP) for name in names if name != BASE}
    return sorted(f"{layer}.weight" for layer in layers)


def merge(base_OI: torch.Tensor, down_RI: torch.Tensor, up_OR: torch.Tensor) -> torch.Tensor:
    """Return the weight that the adapter makes of `base_OI`, in its dtype."""
    return torch.addmm(base_OI.float(), up_OR, down_RI).to(base_OI.dtype)


def base_digest(named_weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return xxh3-64 of the weights' bytes in the order of their names, as four whole numbers below 2¹⁶ in float32."""
    hasher = xxhash.xxh3_64()
    for name in sorted(named_weights):
        hasher.update(raw_bytes(name, named_weights[name]).data)
    digest = hasher.intdigest()
    return torch.tensor([float(digest >> 16 * piece & 0xFFFF) for piece in range(_DIGEST_PIECES)])


def adapter_tensors(
    layers: Mapping[str, tuple[torch.Tensor, torch.Tensor]], base: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield, named, what travels: of each layer its `down_RI` and its scaled `up_OR`; `base` is the base's digest."""
    yield BASE, base
    for layer, (down_RI, up_OR) in layers.items():
        yield f"{layer}{_DOWN}", down_RI
        yield f"{layer}{_UP}", up_OR


class Merged(Mapping[str, torch.Tensor]):
    """All weights of a checkpoint with an adapter merged in, in the serving `dtype`; each is computed when asked for.

    Raises `WrongBase`, for an adapter that is not of the checkpoint's weights.
    """

    def __init__(
        self, base: Mapping[str, torch.Tensor], adapter: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> None:
        self._base = base
        self._dtype = dtype
        self._layers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name in adapted(adapter):
            layer = name.removesuffix(".weight")
            down_RI, up_OR = adapter.get(f"{layer}{_DOWN}"), adapter.get(f"{layer}{_UP}")
            if name not in base or down_RI is None or up_OR is None:
                raise WrongBase(f"the adapter of {name} has no weight in the checkpoint served, or one matrix only")
            self._layers[name] = down_RI, up_OR
            change, found = (len(up_OR), down_RI.shape[1]), tuple(base[name].shape)
            if change != found or up_OR.shape[1] != len(down_RI):
                raise WrongBase(f"the adapter changes {name} as {change}, the checkpoint served has it as {found}")

    def check_base(self, digest: torch.Tensor) -> None:
        """Raise `WrongBase` unless `digest` is that of the weights which the adapter changes."""
        if not torch.equal(digest, base_digest({name: self._in_dtype(name) for name in self._layers})):
            raise WrongBase("the adapter was trained on other weights than those of the checkpoint served")

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._in_dtype(name)
        return merge(weight, *self._layers[name]) if name in self._layers else weight

    def _in_dtype(self, name: str) -> torch.Tensor:
        return self._base[name].to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)
