"""A training run, started as a user starts it."""

from __future__ import annotations

import asyncio
import json

import pytest

import asyncopd
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig
from asyncopd.runtime.callbacks import Callback

from .conftest import CONFIGS, SMALL

pytestmark = pytest.mark.integration


def _summary(directory):
    return json.loads((directory / "summary.json").read_text())


def _lags(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return {int(lag) for line in lines for lag in json.loads(line)["lags"]}


def test_the_quickstart_with_vllm_improves_its_student_within_its_bound(tmp_path, run):
    directory = tmp_path / "run with space"
    done = run(
        directory, **{"engine.use": "vllm", "run.steps": "25", "scheduler.batch_size": "32"}, evaluation__tasks="100"
    )
    assert done.returncode == 0, done.stderr
    summary = _summary(directory)
    assert summary["student_before"]["success"] < 0.4
    assert summary["student_after"]["success"] > summary["student_before"]["success"] + 0.3
    assert summary["teacher"]["success"] > 0.9
    assert summary["staleness"]["max"] <= summary["staleness"]["bound"] == 2
    assert summary["conservation"]["holds"]
    assert summary["cache"]["misses"] > 0
    assert "student after" in done.stdout
    assert (directory / "student" / "model.safetensors").exists()


def test_synchronous_training_is_the_same_code_at_staleness_zero(tmp_path, run):
    done = run(tmp_path, scheduler__max_staleness="0")
    assert done.returncode == 0, done.stderr
    assert _lags(tmp_path) == {0}
    assert _summary(tmp_path)["conservation"]["holds"]


@pytest.mark.parametrize("objective", ["forward_kl", "reverse_kl_mc"])
def test_every_distillation_preset_trains(tmp_path, run, objective):
    done = run(tmp_path, objective__use=objective)
    assert done.returncode == 0, done.stderr
    assert _summary(tmp_path)["conservation"]["trained"] > 0


def test_groups_move_whole(tmp_path, run):
    done = run(tmp_path, scheduler__group_size="4")
    assert done.returncode == 0, done.stderr
    assert _summary(tmp_path)["conservation"]["holds"]


class _Watcher(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.finished = False

    def on_step(self, progress):
        self.steps.append(progress.step)

    def on_finish(self, summary):
        self.finished = True


async def test_train_from_python_works_where_a_loop_already_runs_and_calls_back(tmp_path):
    overrides = [f"{field}={value}" for field, value in {**SMALL, "run.dir": str(tmp_path / "run")}.items()]
    config = load(CONFIGS / "quickstart.yaml", overrides, TrainConfig)
    watcher = _Watcher()
    assert asyncio.get_running_loop().is_running()
    summary = asyncopd.train(config, callbacks=[watcher])
    assert watcher.steps == [1, 2, 3, 4, 5, 6]
    assert watcher.finished
    assert summary["conservation"]["holds"]
