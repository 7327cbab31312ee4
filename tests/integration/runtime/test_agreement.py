"""A run says how well engine and learner agree, and raises an alarm if they do not."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import asyncopd
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig
from asyncopd.engines.torch_receiver import TorchReceiver
from asyncopd.models.resolve import resolve
from asyncopd.runtime import roles
from asyncopd.runtime.callbacks import Callback

from .conftest import CONFIGS, SMALL

pytestmark = pytest.mark.integration


class _Warnings(Callback):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_warning(self, message):
        self.said.append(message)


def _train(directory, **overrides):
    settings = {**SMALL, "run.dir": str(directory), **{name.replace("__", "."): v for name, v in overrides.items()}}
    config = load(CONFIGS / "quickstart.yaml", [f"{field}={value}" for field, value in settings.items()], TrainConfig)
    warnings = _Warnings()
    return asyncopd.train(config, callbacks=[warnings]), warnings.said


@pytest.fixture
def perturbed(tmp_path):
    """A checkpoint that is the quickstart's student but for some noise."""
    student = resolve("package:asyncopd_envs.calculator/pair/student")
    model = AutoModelForCausalLM.from_pretrained(student)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    directory = tmp_path / "perturbed"
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(student).save_pretrained(directory)
    return directory


def test_an_engine_with_the_learners_weights_raises_no_alarm(tmp_path):
    summary, said = _train(tmp_path / "run")
    assert summary["alarms"] == [] and said == []
    assert summary["logprob_diff"]["tokens"] > 0
    assert summary["logprob_diff"]["mean"] <= summary["logprob_diff"]["p99"] <= summary["logprob_diff"]["max"] < 1e-3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["agreement"]["tokens"] for line in lines) == summary["logprob_diff"]["tokens"]
    assert lines[0]["logprob_diff_max"] <= summary["logprob_diff"]["max"]
    (last,) = summary["logprob_diff"]["last_weights"].values()
    assert last["tokens"] == 8 * 32 and last["max"] < 1e-3


def test_an_engine_with_other_weights_raises_the_alarm_once(tmp_path, perturbed, monkeypatch):
    start = roles.start_engine

    def start_wrong(name, directory, *arguments, **options):
        return start(name, perturbed, *arguments, **options)

    monkeypatch.setattr(roles, "start_engine", start_wrong)
    summary, said = _train(tmp_path / "run", scheduler__max_staleness="0", run__steps="2")
    (alarm,) = summary["alarms"]
    assert alarm["cause"] == "engine-learner mismatch" and (alarm["step"], alarm["count"]) == (1, 1)
    assert alarm["message"] in said[0] and "engine.logprob_alarm = 0.001" in said[0] and len(said) == 1
    assert summary["logprob_diff"]["mean"] > 0.001


def test_an_update_that_does_not_arrive_raises_the_alarm_though_no_later_token_was_fresh(tmp_path, monkeypatch):
    """The engine says that it serves the new weights, and goes on with the old ones."""

    async def receive(self, manifest):
        self._received = manifest.version

    monkeypatch.setattr(TorchReceiver, "receive", receive)
    summary, said = _train(tmp_path / "run", learner__optimizer__lr="0.003")
    at_the_end = summary["alarms"][-1]
    assert at_the_end["step"] == 6 and "at the end" in at_the_end["cause"]
    assert any(at_the_end["message"] in line for line in said)
    (last,) = summary["logprob_diff"]["last_weights"].values()
    assert last["mean"] > 0.001


def test_the_alarm_rings_where_the_configuration_says(tmp_path):
    summary, said = _train(tmp_path / "run", engine__logprob_alarm="1e-9", scheduler__max_staleness="0")
    at_steps, at_the_end = summary["alarms"]
    assert at_steps["count"] > 1 and at_the_end["count"] == 1
    assert len(said) == 2
