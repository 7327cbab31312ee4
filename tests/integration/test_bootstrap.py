"""The shipped pair succeeds as often as promised, and the command that made it makes pairs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncopd.cli.app import app
from asyncopd.config.loading import load, validate
from asyncopd.config.root import SftConfig, TrainConfig
from asyncopd.models.loading import load_causal_lm, load_tokenizer
from asyncopd.runtime.measure import measure
from asyncopd.runtime.sft import sft

pytestmark = pytest.mark.integration

CONFIGS = Path(__file__).parents[2] / "configs"
STUDENT = "package:asyncopd_envs.calculator/pair/student"
TEACHER = "package:asyncopd_envs.calculator/pair/teacher"


@pytest.mark.parametrize(("model", "least", "most"), [(TEACHER, 0.95, 1.0), (STUDENT, 0.10, 0.35)])
def test_the_shipped_pair_succeeds_as_often_as_promised(model: str, least: float, most: float) -> None:
    config = validate(
        {
            "student": {"model": STUDENT},
            "teacher": {"model": TEACHER},
            "environment": {"use": "calculator"},
            "engine": {"use": "torch", "max_context": 256, "max_concurrent": 128},
            "rollout": {"max_concurrent": 128, "max_turns": 6, "max_turn_tokens": 48},
            "evaluation": {"tasks": 400},
        },
        TrainConfig,
    )
    assert least <= asyncio.run(measure(config, model))["success"] <= most


@pytest.mark.parametrize(
    ("kind", "rate", "mark"), [("recovered", 0.0, 0.5), ("kept", 1.0, 0.08)], ids=["rising", "falling"]
)
async def test_it_stops_once_success_has_crossed_the_mark(tmp_path: Path, kind: str, rate: float, mark: float) -> None:
    """The shipped student succeeds at about a fifth."""
    overrides = [
        f"run.dir={tmp_path}",
        "run.steps=40",
        f"student.model={STUDENT}",
        f"environment.options={{expert_errors: {{kind: {kind}, rate: {rate}}}}}",
        "demonstrations.episodes=400",
        "batch_size=16",
        f"stop={{success: {mark}, every: 4, tasks: 100}}",
        "learner.optimizer.lr=3.0e-3",
        "evaluation.tasks=0",
    ]
    result = await sft(load(CONFIGS / "bootstrap-student.yaml", overrides, SftConfig))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    measured = [line["success"] for line in lines if "success" in line]
    assert result.summary["steps"] == len(lines) == 4 * len(measured) < 40
    side = 1 if kind == "recovered" else -1
    assert all(side * (success - mark) < 0 for success in measured[:-1])
    assert side * (measured[-1] - mark) >= 0


def test_bootstrap_makes_a_teacher_and_a_student(tmp_path: Path) -> None:
    """A few steps of each stage: what is made is a pair, if not a good one."""
    out = tmp_path / "a pair"
    small = [
        "run.steps=3",
        "run.checkpoint_every=3",
        "demonstrations.episodes=64",
        "evaluation.tasks=4",
        "batch_size=8",
    ]
    short = ["rollout.max_turns=2", "rollout.max_turn_tokens=8"]
    options = [argument for override in (*small, *short) for argument in ("--set", override)]
    command = ["bootstrap", "--out", str(out), "--configs", str(CONFIGS), *options]
    ended = CliRunner().invoke(app, command, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    sizes = {}
    for name in ("teacher", "student"):
        sizes[name] = load_causal_lm(out / name, "float32").config.hidden_size
        assert load_tokenizer(out / name, None).chat_template
    assert sizes["teacher"] > sizes["student"]
    with pytest.raises(Exception, match="is there already"):
        CliRunner().invoke(app, command, catch_exceptions=False)
