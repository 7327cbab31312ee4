"""A student of which a low-rank adapter is trained, through peft; its own weights stay as they are served.

Shapes: O outputs and I inputs of a layer, R the adapter's rank.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear
from transformers import PreTrainedModel

from asyncopd.config.learner import LoraSection
from asyncopd.learner.state import save_tensors
from asyncopd.learner.targets import check_targets
from asyncopd.learner.weights import NamedTensors
from asyncopd.tensors.adapter import adapter_tensors, base_digest, merge

_ADAPTER = "default"  # peft's name for the only one
_OF_PEFT = (".base_layer", f".{_ADAPTER}")


class LoraWeights:
    """Puts an adapter into `model`, whose weights are in serving dtype, and trains it in float32.

    `published` is the adapter alone where `alone` says so; `base` is the directory of the model. Raises `UserError`
    for layers that cannot be adapted.
    """

    def __init__(self, model: PreTrainedModel, section: LoraSection, *, alone: bool, base: Path) -> None:
        self._model = model
        self._alone = alone
        self._config = LoraConfig(
            r=section.rank,
            lora_alpha=section.alpha,
            target_modules=section.target_modules,
            lora_dropout=0.0,  # the policy that learns must be the one that is served
            base_model_name_or_path=str(base.resolve()),
            task_type="CAUSAL_LM",
        )
        check_targets(model, section.target_modules)
        self._layers = _inject(model, self._config)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        self.trained = {_plain(name): p for name, p in model.named_parameters() if p.requires_grad}
        self._base = base_digest({f"{name}.weight": _base_of(layer) for name, layer in self._layers.items()})

    def published(self) -> NamedTensors:
        if self._alone:
            return adapter_tensors({name: _matrices(layer) for name, layer in self._layers.items()}, self._base)
        return self.merged()

    @torch.no_grad()
    def merged(self) -> NamedTensors:
        for name, parameter in self._model.named_parameters():
            plain = _plain(name)
            if plain in self.trained:
                continue
            layer = self._layers.get(plain.removesuffix(".weight"))
            yield plain, parameter.detach() if layer is None else merge(parameter, *_matrices(layer))

    def export_beside(self, directory: Path) -> None:
        """Write the adapter, as peft and vLLM read it, to `adapter/`."""
        target = directory / "adapter"
        target.mkdir()
        self._config.save_pretrained(str(target))
        tensors = {f"base_model.model.{name}": parameter for name, parameter in self.trained.items()}
        save_tensors(target / "adapter_model.safetensors", tensors)


def _inject(model: PreTrainedModel, config: LoraConfig) -> dict[str, Linear]:
    """Put adapters into the layers that `config` targets; return those by name."""
    inject_adapter_in_model(config, model)
    return {name: module for name, module in model.named_modules() if isinstance(module, Linear)}


def _base_of(layer: Linear) -> torch.Tensor:
    weight = layer.get_base_layer().weight
    assert isinstance(weight, torch.nn.Parameter)
    return weight.detach()


def _matrices(layer: Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a layer's two matrices, the second one scaled."""
    down, up = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]
    assert isinstance(down, torch.nn.Linear) and isinstance(up, torch.nn.Linear)
    return down.weight.detach(), up.weight.detach() * layer.scaling[_ADAPTER]


def _plain(name: str) -> str:
    """Return the name that a parameter has without peft."""
    for part in _OF_PEFT:
        name = name.replace(f"{part}.", ".")
    return name
