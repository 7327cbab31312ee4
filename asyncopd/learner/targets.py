"""Which layers of a student an adapter may change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from asyncopd.config.learner import LoraSection
from asyncopd.errors import UserError


def check_lora(section: LoraSection, student: Path) -> None:
    """Raise `UserError` unless the model in `student`, whose weights are not read, has what `section` targets."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(student))
    check_targets(model, section.target_modules)


def check_targets(model: PreTrainedModel, targets: str | Sequence[str]) -> None:
    """Raise `UserError` unless each of `targets` names linear layers below the head, by the ends of their names."""
    if isinstance(targets, str):
        return
    if not targets:
        raise UserError("learner.lora.target_modules", "names no layer", f"choose among {_choice(model)}")
    head = model.get_output_embeddings()
    for target in targets:
        found = [module for name, module in model.named_modules() if f".{name}".endswith(f".{target}")]
        if not found or any(not isinstance(module, torch.nn.Linear) or module is head for module in found):
            field = f"learner.lora.target_modules {target!r}"
            raise UserError(field, "is no linear layer of the student below its head", f"choose among {_choice(model)}")


def _choice(model: PreTrainedModel) -> str:
    head = model.get_output_embeddings()
    linear = [n for n, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head]
    return ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
