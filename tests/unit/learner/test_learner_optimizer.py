"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import pytest
import torch

from asyncopd.config.learner import OptimizerSection
from asyncopd.learner.optimizer import Optimizer, lr_factor


def test_warm_up_grows_linearly_to_the_peak():
    section = OptimizerSection(warmup_steps=4)
    assert [lr_factor(step, 10, section) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_falls_from_the_peak_to_its_final_fraction():
    section = OptimizerSection(schedule="cosine", warmup_steps=2, final_lr_fraction=0.1)
    factors = [lr_factor(step, 12, section) for step in range(2, 14)]
    assert factors[0] == 1.0
    assert factors[5] == pytest.approx(0.55)
    assert factors[10] == factors[11] == pytest.approx(0.1)
    assert factors == sorted(factors, reverse=True)


def test_muon_moves_the_hidden_matrices_and_adamw_the_rest(reference):
    section = OptimizerSection(use="muon", lr=1e-9, matrix_lr=0.1)
    optimizer = Optimizer(reference, section, 10)
    before = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    for parameter in reference.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step(0)
    moved = {name for name, p in reference.named_parameters() if (p - before[name]).abs().max() > 1e-6}
    assert moved == {name for name in before if name.endswith("_proj.weight")}


def test_weight_decay_spares_gains(reference):
    optimizer = Optimizer(reference, OptimizerSection(lr=0.1, weight_decay=0.5), 10)
    for parameter in reference.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = reference.model.norm.weight.detach().clone(), reference.model.embed_tokens.weight.detach().clone()
    optimizer.step(0)
    assert torch.equal(reference.model.norm.weight, before[0])
    assert torch.allclose(reference.model.embed_tokens.weight, 0.95 * before[1])


def test_the_gradient_is_clipped_to_the_largest_norm(reference):
    optimizer = Optimizer(reference, OptimizerSection(clip_norm=0.5), 10)
    for parameter in reference.parameters():
        parameter.grad = torch.ones_like(parameter)
    entries = sum(parameter.numel() for parameter in reference.parameters())
    assert optimizer.clip().item() == pytest.approx(entries**0.5)
    clipped = torch.stack([parameter.grad.norm() for parameter in reference.parameters()]).norm()
    assert clipped.item() == pytest.approx(0.5, rel=1e-4)
