"""Reading a file of all tensors, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from asyncopd.records import WeightFile
from asyncopd.tensors.checkpoint import read_checkpoint
from asyncopd.tensors.mapped import map_tensors


def open_weights(weights: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Verify the file, then return an iterator of (name, view) in its order; writing to a view changes no file.

    Raises `TornWeights`, before anything is returned, if the file is missing or not as `weights` says; `ValueError`
    for a format that does not hold all tensors.
    """
    match weights.format:
        case "mapped":
            return map_tensors(weights)
        case "safetensors":
            return read_checkpoint(weights)
        case _:
            raise ValueError(f"{weights.path}: a file of format {weights.format} does not hold all tensors")
