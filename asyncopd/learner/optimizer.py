"""Optimizers over a model's parameters, and their learning-rate schedule."""

from __future__ import annotations

import math

import torch
from transformers import PreTrainedModel

from asyncopd.config.learner import OptimizerSection


class Optimizer:
    """AdamW, or Muon on the hidden matrices and AdamW on the rest, under one schedule, for what of a model trains.

    Its state is a flat mapping of tensors named `STATE.PARAMETER`.
    """

    def __init__(self, model: PreTrainedModel, section: OptimizerSection, steps: int) -> None:
        self._section = section
        self._steps = steps
        self._names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
        ends = {model.get_input_embeddings().weight, model.get_output_embeddings().weight}
        hidden = [p for p in self._names if p.ndim == 2 and p not in ends] if section.use == "muon" else []
        rest = [p for p in self._names if p not in set(hidden)]
        self._optimizers: list[torch.optim.Optimizer] = [_adamw(rest, section)]
        if hidden:
            self._optimizers.append(torch.optim.Muon(hidden, lr=section.matrix_lr, weight_decay=section.weight_decay))
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]

    def clip(self) -> torch.Tensor:
        """Scale the gradient down to the largest norm allowed; return the norm it had."""
        return torch.nn.utils.clip_grad_norm_(list(self._names), self._section.clip_norm)

    def lr(self, step: int) -> float:
        """Return AdamW's learning rate at optimizer step `step`."""
        return self._section.lr * lr_factor(step, self._steps, self._section)

    def step(self, step: int) -> None:
        """Move the parameters at the learning rate of optimizer step `step`."""
        factor = lr_factor(step, self._steps, self._section)
        for optimizer, peaks in zip(self._optimizers, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Return all state that a bitwise continuation needs."""
        return {
            f"{kind}.{self._names[parameter]}": value
            for optimizer in self._optimizers
            for parameter, entries in optimizer.state.items()
            for kind, value in entries.items()
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Invert `state`."""
        owners = {p: optimizer for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]}
        parameters = {name: parameter for parameter, name in self._names.items()}
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for key, value in state.items():
            kind, _, name = key.partition(".")
            parameter = parameters[name]
            owners[parameter].state[parameter][kind] = value.to(parameter.device)


def lr_factor(step: int, steps: int, section: OptimizerSection) -> float:
    """Return the share of the peak learning rate at `step` (from 0) of `steps`: linear warm-up, then the schedule."""
    if step < section.warmup_steps:
        return (step + 1) / section.warmup_steps
    if section.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - section.warmup_steps) / max(1, steps - section.warmup_steps))
    return section.final_lr_fraction + (1 - section.final_lr_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


def _adamw(parameters: list[torch.Tensor], section: OptimizerSection) -> torch.optim.AdamW:
    """Return AdamW; weight decay acts on matrices, since shrinking gains and biases only shrinks the signal."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": section.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
        fused=True,
    )
