"""Saving, restoring, exporting and publishing a learner."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncopd.errors import UserError
from asyncopd.learner.state import atomic_directory


def advance(learner, make_batch, first: int, last: int) -> list[dict[str, float]]:
    return [learner.step(make_batch(step=step, seed=step, lag=min(step, 1))).metrics for step in range(first, last)]


@pytest.mark.parametrize("use", ["adamw", "muon"])
def test_a_restored_learner_continues_bitwise(make_learner, make_batch, tmp_path: Path, use):
    optimizer = {"use": use, "schedule": "cosine", "warmup_steps": 1, "weight_decay": 0.1}
    undisturbed = make_learner(optimizer=optimizer)
    advance(undisturbed, make_batch, 0, 2)
    undisturbed.save(tmp_path / "checkpoint")
    expected = advance(undisturbed, make_batch, 2, 4)
    restored = make_learner(optimizer=optimizer)
    restored.restore(tmp_path / "checkpoint")
    assert restored.step_count == 2
    assert advance(restored, make_batch, 2, 4) == expected
    for (name, ours), (_, theirs) in zip(restored.named_tensors(), undisturbed.named_tensors(), strict=True):
        assert torch.equal(ours, theirs), name


def test_a_learner_that_has_moved_on_can_be_rolled_back(make_learner, make_batch, tmp_path: Path):
    learner = make_learner()
    learner.save(tmp_path / "checkpoint")
    first = advance(learner, make_batch, 0, 2)
    learner.restore(tmp_path / "checkpoint")
    assert advance(learner, make_batch, 0, 2) == first


def test_a_checkpoint_holds_no_pickle(make_learner, make_batch, tmp_path: Path):
    learner = make_learner()
    advance(learner, make_batch, 0, 1)
    learner.save(tmp_path / "checkpoint")
    assert {path.suffix for path in (tmp_path / "checkpoint").iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_is_an_ordinary_checkpoint(make_learner, make_batch, tmp_path: Path, dtype):
    learner = make_learner(dtype=dtype)
    advance(learner, make_batch, 0, 1)
    learner.export(tmp_path / "export")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    weights = dict(learner.named_tensors())
    assert str(model.dtype) == f"torch.{dtype}"
    assert json.loads((tmp_path / "export" / "config.json").read_text())["dtype"] == dtype
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert tokenizer.chat_template == "{{ messages[0].content }}"
    assert tokenizer("w5")["input_ids"] == [5]


def test_an_export_may_be_read_by_whom_the_umask_lets_read(make_learner, tmp_path: Path):
    """The user who serves a student need not be the one who trained it."""
    former = os.umask(0o027)
    try:
        make_learner().export(tmp_path / "export")
    finally:
        os.umask(former)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "export").iterdir()} == {0o640}
    assert (tmp_path / "export").stat().st_mode & 0o777 == 0o750


def test_tied_weights_are_published_once_in_serving_dtype(make_learner):
    tensors = list(make_learner(dtype="bfloat16").named_tensors())
    names = [name for name, _ in tensors]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert len(names) == len(set(names))
    assert {tensor.dtype for _, tensor in tensors} == {torch.bfloat16}


def test_a_bfloat16_student_gathers_updates_below_its_own_resolution(make_learner, make_batch):
    """Steps of 1e-5 vanish in bfloat16 weights near 1, but not in what the learner keeps."""
    learner = make_learner(dtype="bfloat16", optimizer={"lr": 1e-5})
    norm = dict(learner._model.named_parameters())["model.norm.weight"]
    before = norm.detach().clone()
    advance(learner, make_batch, 0, 3)
    assert norm.dtype == torch.float32
    assert 0 < (norm - before).abs().max() < 2**-9
    assert torch.equal(dict(learner.named_tensors())["model.norm.weight"], before.bfloat16())


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "checkpoint"
    with pytest.raises(UserError), atomic_directory(target) as scratch:
        (scratch / "half").write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_leaves_the_former_directory(tmp_path: Path):
    target = tmp_path / "checkpoint"
    for text in ("first", "second"):
        with atomic_directory(target) as scratch:
            (scratch / "file").write_text(text)
    with pytest.raises(UserError), atomic_directory(target) as scratch:
        (scratch / "file").write_text("third")
        raise OSError("disk full")
    assert (target / "file").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]
