"""Every shipped configuration runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from asyncopd.config.loading import load
from asyncopd.config.root import SftConfig, TrainConfig

from .conftest import CONFIGS

pytestmark = pytest.mark.integration

TRAINING = ("python", "quickstart", "quickstart-lora", "quickstart-servers", "smollm2")


def _train(name, *options):
    command = [sys.executable, "-m", "asyncopd.cli.main", "train", str(CONFIGS / f"{name}.yaml"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_each_configuration_is_of_a_known_kind():
    for path in CONFIGS.glob("*.yaml"):
        load(path, [], TrainConfig if path.stem in TRAINING else SftConfig)


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_configuration_passes_its_dry_run(tmp_path, name):
    done = _train(name, "--dry-run", "--set", f"run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr


def test_smollm2_learns_from_itself_for_two_steps_on_vllm(tmp_path):
    small = {
        "run.dir": str(tmp_path / "run"),
        "run.steps": "2",
        "scheduler.batch_size": "2",
        "rollout.max_turn_tokens": "12",
        "evaluation.tasks": "0",
    }
    done = _train("smollm2", *(word for field, value in small.items() for word in ("--set", f"{field}={value}")))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    # The teacher has seen the worked conversation, the student has not.
    assert all(line["teacher_kl"] > 0.01 for line in lines)
    # float32 weights, engine and learner: the same numbers to rounding where the weights are the same.
    assert lines[0]["logprob_diff_max"] < 1e-2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["conservation"]["holds"]
