"""Fine-tuning: what is taught, when it ends, and that an interrupted run goes on as if it had not been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asyncopd.config.loading import validate
from asyncopd.config.root import SftConfig
from asyncopd.errors import UserError
from asyncopd.models.resolve import resolve
from asyncopd.records import LossMask
from asyncopd.runtime.callbacks import Callback, Progress
from asyncopd.runtime.demonstrations import Demonstrations, record
from asyncopd.runtime.prepare import tokenizer_of
from asyncopd.runtime.sft import sft
from asyncopd.runtime.world import open_world
from asyncopd.text.chat import Chat

STUDENT = "package:asyncopd_envs.calculator/pair/student"


def config(directory: Path, **changes: Any) -> SftConfig:
    base = {
        "run": {"dir": str(directory), "steps": 4, "checkpoint_every": 2},
        "student": {"model": STUDENT},
        "environment": {"use": "calculator", "options": {"train_tasks": 64, "test_tasks": 16}},
        "demonstrations": {"episodes": 24},
        "batch_size": 8,
        "engine": {"use": "torch", "max_context": 256},
        "rollout": {"max_turns": 4, "max_turn_tokens": 16},
        "evaluation": {"tasks": 0},
    }
    return validate(base | changes, SftConfig)


async def demonstrations(chosen: SftConfig) -> tuple[Demonstrations, list[str]]:
    warnings: list[str] = []
    world = await open_world(chosen.environment)
    chat = Chat(tokenizer_of(chosen.student, resolve(chosen.student.model)), world.tools)
    return await record(chosen, world, chat, warnings.append), warnings


async def test_each_epoch_deals_every_episode_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    dealt, _ = await demonstrations(config(tmp_path))
    epochs = [
        [sample.attempt for step in steps for sample in dealt.batch(step, 8).samples]
        for steps in ((0, 1, 2), (3, 4, 5))
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(24))
    assert epochs[0] != epochs[1]


async def test_a_batch_depends_on_its_step_only(tmp_path: Path) -> None:
    first, _ = await demonstrations(config(tmp_path))
    second, _ = await demonstrations(config(tmp_path))
    for step in (5, 2):
        ours, theirs = first.batch(step, 10), second.batch(step, 10)
        assert [sample.attempt for sample in ours.samples] == [sample.attempt for sample in theirs.samples]
        for one, other in zip(ours.samples, theirs.samples, strict=True):
            np.testing.assert_array_equal(one.segment.ids_T, other.segment.ids_T)


@pytest.mark.parametrize(("taught", "masks"), [(False, {0, 1, 6}), (True, {0, 1})])
async def test_errors_on_purpose_are_taught_only_where_asked(tmp_path: Path, taught: bool, masks: set[int]) -> None:
    options = {"train_tasks": 64, "test_tasks": 16, "expert_errors": {"kind": "recovered", "rate": 1.0}}
    chosen = config(
        tmp_path,
        environment={"use": "calculator", "options": options},
        demonstrations={"episodes": 24, "train_on_errors": taught},
    )
    dealt, _ = await demonstrations(chosen)
    for sample in dealt.batch(0, 24).samples:
        assert set(sample.segment.loss_mask_T) == {LossMask(mask) for mask in masks}


async def test_demonstrations_that_do_not_fit_are_told_of(tmp_path: Path) -> None:
    _, warnings = await demonstrations(config(tmp_path, rollout={"max_turns": 3}))
    assert len(warnings) == 1 and "of 24 demonstrations were cut" in warnings[0]
    with pytest.raises(UserError, match="no demonstration ends"):
        await demonstrations(config(tmp_path, rollout={"max_turns": 1}))


async def test_training_lowers_the_loss_and_exports_a_checkpoint(tmp_path: Path) -> None:
    result = await sft(config(tmp_path, run={"dir": str(tmp_path), "steps": 12}))
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 12 and np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert result.summary["steps"] == 12
    assert json.loads((tmp_path / "summary.json").read_text()) == result.summary
    assert resolve(str(result.student)) == tmp_path / "student"


class _Cut(Callback):
    """Breaks the run after a step, as a crash would."""

    def on_step(self, progress: Progress) -> None:
        if progress.step == 3:
            raise ConnectionAbortedError("cut")


async def test_a_resumed_run_equals_the_undisturbed_one(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    await sft(config(whole))
    with pytest.raises(ConnectionAbortedError):
        await sft(config(cut), callbacks=[_Cut()])
    await sft(config(cut), resume=True)
    ours, theirs = (load_file(directory / "student" / "model.safetensors") for directory in (whole, cut))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


async def test_a_directory_is_used_once(tmp_path: Path) -> None:
    await sft(config(tmp_path, run={"dir": str(tmp_path), "steps": 1}))
    with pytest.raises(UserError, match="already holds a run"):
        await sft(config(tmp_path))
    with pytest.raises(UserError, match="holds no run"):
        await sft(config(tmp_path / "other"), resume=True)


async def test_an_environment_without_an_expert_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncopd_envs.calculator.env import Calculator

    monkeypatch.delattr(Calculator, "expert")
    with pytest.raises(UserError, match="has no expert"):
        await sft(config(tmp_path))


async def test_a_new_model_is_made_once(tmp_path: Path) -> None:
    model = tmp_path / "start"
    initialise = {"use": "asyncopd_envs.calculator.models:create", "options": {"width": 32, "layers": 1, "seed": 0}}
    student = {"model": str(model)}
    run = {"dir": str(tmp_path / "one"), "steps": 1}
    await sft(config(tmp_path, run=run, student=student, initialise=initialise))
    made = (model / "model.safetensors").stat().st_mtime_ns
    await sft(config(tmp_path, run=run | {"dir": str(tmp_path / "two")}, student=student, initialise=initialise))
    assert (model / "model.safetensors").stat().st_mtime_ns == made
    with pytest.raises(UserError, match="initialise: "):
        wrong = initialise | {"options": {"depth": 3}}
        await sft(config(tmp_path / "three", student={"model": str(tmp_path / "new")}, initialise=wrong))
