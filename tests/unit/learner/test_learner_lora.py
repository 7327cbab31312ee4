"""A learner that trains an adapter only: what it computes, publishes, saves and exports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncopd.config.learner import LoraSection
from asyncopd.errors import UserError
from asyncopd.learner.targets import check_lora
from asyncopd.models.loading import DTYPES
from asyncopd.tensors.adapter import Merged
from asyncopd.tensors.base import CheckpointTensors

LORA = {"rank": 4, "alpha": 12}
IDS = torch.arange(2, 30)[None]


def advance(learner, make_batch, first: int, last: int) -> list[dict[str, float]]:
    return [learner.step(make_batch(step=step, seed=step)).metrics for step in range(first, last)]


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(input_ids=IDS).logits


def test_a_new_adapter_changes_nothing(make_learner, make_batch, student: Path):
    learner = make_learner(lora=LORA)
    checkpoint = CheckpointTensors(student)
    for name, tensor in learner.named_tensors():
        assert torch.equal(tensor, checkpoint[name]), name
    adapted = learner.step(make_batch(step=0, seed=0)).metrics
    full = make_learner().step(make_batch(step=0, seed=0)).metrics
    assert adapted["loss"] == pytest.approx(full["loss"], rel=1e-5)


def test_only_the_adapter_learns_and_is_kept(make_learner, make_batch, student: Path, tmp_path: Path):
    learner = make_learner(lora={**LORA, "target_modules": ["q_proj", "layers.1.mlp.up_proj"]})
    losses = [metrics["loss"] for metrics in advance(learner, make_batch, 0, 4)]
    assert len(set(losses)) == 4
    checkpoint = CheckpointTensors(student)
    changed = {name for name, tensor in learner.named_tensors() if not torch.equal(tensor, checkpoint[name])}
    queries = {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)}
    assert changed == queries | {"model.layers.1.mlp.up_proj.weight"}
    learner.save(tmp_path / "checkpoint")
    kept = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert len(kept) == 6
    moments = load_file(tmp_path / "checkpoint" / "optimizer.safetensors")
    assert all("lora_" in name for name in [*kept, *moments])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_adapter_continues_bitwise(make_learner, make_batch, tmp_path: Path, dtype):
    undisturbed = make_learner(lora=LORA, dtype=dtype)
    advance(undisturbed, make_batch, 0, 2)
    undisturbed.save(tmp_path / "checkpoint")
    expected = advance(undisturbed, make_batch, 2, 4)
    restored = make_learner(lora=LORA, dtype=dtype)
    restored.restore(tmp_path / "checkpoint")
    assert advance(restored, make_batch, 2, 4) == expected
    for (name, ours), (_, theirs) in zip(restored.named_tensors(), undisturbed.named_tensors(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_alone_becomes_the_same_bits_as_merged(make_learner, make_batch, student: Path, dtype):
    learners = [make_learner(lora=LORA, dtype=dtype, publish=publish) for publish in ("adapter", "merged")]
    for learner in learners:
        advance(learner, make_batch, 0, 2)
    adapter, merged = (dict(learner.named_tensors()) for learner in learners)
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}
    received = Merged(CheckpointTensors(student), adapter, DTYPES[dtype])
    received.check_base(adapter["adapter.base"])
    for name, tensor in merged.items():
        assert torch.equal(received[name], tensor), name


def test_an_export_holds_the_merged_student_and_the_adapter_beside(make_learner, make_batch, student, tmp_path: Path):
    learner = make_learner(lora=LORA)
    advance(learner, make_batch, 0, 3)
    learner.export(tmp_path / "export")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    base = AutoModelForCausalLM.from_pretrained(student)
    before = logits(base)
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "export" / "adapter"))
    torch.testing.assert_close(logits(adapted), logits(merged), atol=1e-5, rtol=1e-5)
    assert (logits(merged) - before).abs().max() > 0.01
    with torch.no_grad():
        hidden = learner._model.base_model(
            input_ids=IDS, position_ids=torch.arange(28)[None], boundaries=[0, 28]
        ).last_hidden_state
        torch.testing.assert_close(learner._model.lm_head(hidden), logits(merged), atol=1e-5, rtol=1e-5)


def test_what_trains_is_float32_and_what_rests_is_as_served(make_learner):
    learner = make_learner(lora=LORA, dtype="bfloat16")
    dtypes = {(parameter.requires_grad, parameter.dtype) for parameter in learner._model.parameters()}
    assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}


@pytest.mark.parametrize("target", ["q_porj", "lm_head", "embed_tokens", "self_attn"])
def test_layers_that_cannot_be_adapted_are_refused(make_learner, student: Path, target: str):
    section = LoraSection(target_modules=["v_proj", target])
    with pytest.raises(UserError, match=rf"target_modules '{target}'.*choose among q_proj, k_proj"):
        check_lora(section, student)
    with pytest.raises(UserError, match=rf"target_modules '{target}'"):
        make_learner(lora=section.model_dump())


def test_layers_are_known_without_the_weights(student: Path):
    check_lora(LoraSection(), student)
    check_lora(LoraSection(target_modules=["down_proj", "layers.1.self_attn.o_proj"]), student)
    with pytest.raises(UserError, match="names no layer; choose among q_proj"):
        check_lora(LoraSection(target_modules=[]), student)
