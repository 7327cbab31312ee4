"""A learner for measurements: its weights move as far as an optimizer's would, and nothing is learned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import torch
import xxhash
from transformers import PreTrainedModel

from asyncopd.config.model import Dtype
from asyncopd.models.loading import DTYPES
from asyncopd.records import SendOrder, WeightFile
from asyncopd.tensors.sender import Sender


class MovingLearner:
    """Implements `seams.WeightSource`; each step moves each weight of float32 `model` by `lr`, up or down.

    That is what Adam does with steady gradients.
    """

    def __init__(self, model: PreTrainedModel, dtype: Dtype, lr: float) -> None:
        self.model = model.requires_grad_(False)
        self._dtype = DTYPES[dtype]
        self._lr = lr
        self._sender = Sender()
        self._random = torch.Generator().manual_seed(0)
        self._signs = {
            name: torch.randint(0, 2, parameter.shape, generator=self._random, dtype=torch.int8).mul_(2).sub_(1)
            for name, parameter in model.named_parameters()
        }

    def step(self) -> None:
        """Move all weights: those of a tensor by the same pattern as ever, this time or against it."""
        for name, parameter in self.model.named_parameters():
            towards = 1 if torch.rand((), generator=self._random) < 0.5 else -1
            parameter.add_(self._signs[name], alpha=towards * self._lr)

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights in serving dtype."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.to(self._dtype)

    def served(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights in serving dtype."""
        return {name: tensor.clone() for name, tensor in self.named_tensors()}

    def checksum(self) -> int:
        """Return xxh3-64 of all weights in serving dtype."""
        hasher = xxhash.xxh3_64()
        for _, tensor in self.named_tensors():
            hasher.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return hasher.intdigest()

    async def send(self, order: SendOrder) -> WeightFile:
        """Send as a learner in a process of its own would, beside the event loop."""
        return await asyncio.to_thread(lambda: self._sender.send(order, self.named_tensors()))
