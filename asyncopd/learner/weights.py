"""What of a student is trained, published and exported, where all of it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel

NamedTensors = Iterator[tuple[str, torch.Tensor]]


class Weights(Protocol):
    """The weights of a student by their Hugging Face names, tied ones once.

    `trained` are those that the optimizer moves; `published` is what engines are sent, `merged` all weights as they
    serve, both in serving dtype; `export_beside` adds to an exported checkpoint what else there is.
    """

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]: ...

    def published(self) -> NamedTensors: ...

    def merged(self) -> NamedTensors: ...

    def export_beside(self, directory: Path) -> None: ...


class FullWeights:
    """Trains every weight of `model`; engines serve them in `dtype`."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self.trained = dict(model.named_parameters())
        self._dtype = dtype

    def published(self) -> NamedTensors:
        return self.merged()

    def merged(self) -> NamedTensors:
        return ((name, parameter.detach().to(self._dtype)) for name, parameter in self.trained.items())

    def export_beside(self, directory: Path) -> None:
        """There is nothing else."""
