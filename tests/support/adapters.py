"""Adapters of the tiny models, as a learner publishes them, and the models they make."""

from __future__ import annotations

import copy

import torch
from transformers import Qwen3ForCausalLM

from asyncopd.records import SendOrder, WeightFile
from asyncopd.tensors.adapter import adapted, adapter_tensors, base_digest, merge
from asyncopd.tensors.sender import Sender

RANK = 4
ENDS = ("q_proj.weight", "v_proj.weight", "up_proj.weight", "down_proj.weight")


def make_adapter(model: Qwen3ForCausalLM, seed: int, ends: tuple[str, ...] = ENDS) -> dict[str, torch.Tensor]:
    """Return a random adapter of the weights of `model` whose names end so; it changes what the model says by much."""
    random = torch.Generator().manual_seed(seed)
    weights = {name: p.detach() for name, p in model.named_parameters() if name.endswith(ends)}
    layers = {
        name.removesuffix(".weight"): (
            torch.randn(RANK, weight.shape[1], generator=random) * 0.2,
            torch.randn(len(weight), RANK, generator=random) * 0.2,
        )
        for name, weight in weights.items()
    }
    return dict(adapter_tensors(layers, base_digest(weights)))


def adapted_model(model: Qwen3ForCausalLM, adapter: dict[str, torch.Tensor]) -> Qwen3ForCausalLM:
    """Return `model` with the adapter merged in."""
    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in adapted(adapter):
            layer = name.removesuffix(".weight")
            parameters[name].copy_(
                merge(parameters[name], adapter[f"{layer}.lora_A.weight"], adapter[f"{layer}.lora_B.weight"])
            )
    return model


class AdapterSource:
    """A `WeightSource` of an adapter that is set from outside."""

    def __init__(self) -> None:
        self.adapter: dict[str, torch.Tensor] = {}
        self._sender = Sender()

    async def send(self, order: SendOrder) -> WeightFile:
        return self._sender.send(order, self.adapter.items())
