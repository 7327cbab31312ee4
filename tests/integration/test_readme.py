"""What the README says runs, runs."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

from asyncopd.config.loading import load, validate
from asyncopd.config.root import TrainConfig
from asyncopd.models.resolve import resolve
from asyncopd.records import Version
from asyncopd.rollout.pool import RolloutPool
from asyncopd.runtime.prepare import tokenizer_of
from asyncopd.runtime.roles import serving
from asyncopd.runtime.world import open_world
from asyncopd.text.chat import Chat

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def _block(language: str, containing: str) -> str:
    (block,) = [block for block in _blocks(language) if containing in block]
    return block


def test_the_objective_works_alone():
    names: dict = {}
    exec(_block("python", "reverse_kl_topk"), names)
    assert names["student"].grad.abs().sum() > 0


def test_the_configuration_is_valid():
    validate(yaml.safe_load(_block("yaml", "my.yaml")), TrainConfig)


def test_training_from_python_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    small = "run: {steps: 3}\nengine: {use: torch, max_context: 256}\nevaluation: {tasks: 10}\n"
    shipped = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    (tmp_path / "configs" / "quickstart.yaml").write_text(yaml.safe_dump({**shipped, **yaml.safe_load(small)}))
    exec(_block("python", "asyncopd.train"), {})
    said = capsys.readouterr().out
    assert "'bound': 4" in said
    assert said.startswith("1 ")


async def test_the_environment_poses_its_tasks_to_a_real_model(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_environment.py").write_text(_block("python", "my_environment.py"))
    importlib.invalidate_caches()
    smollm = load(
        ROOT / "configs" / "smollm2.yaml",
        [
            "environment.use=my_environment:Capitals",
            "environment.options={}",
            "engine.use=torch",
            "rollout.max_turn_tokens=8",
        ],
        TrainConfig,
    )
    world = await open_world(smollm.environment)
    assert {task.id for task in world.train}.isdisjoint(task.id for task in world.test)
    directory = resolve(smollm.student.model)
    chat = Chat(tokenizer_of(smollm.student, directory), world.tools)
    async with serving(smollm, "readme", directory) as engine:
        pool = RolloutPool(engine, world.make, chat, smollm.rollout, 0)
        trajectory = await pool.run(0, world.train[0], 0, Version(0, 0))
        await pool.close()
    assert trajectory.turns
    assert "capital of" in trajectory.prompt[-1].content
    sys.modules.pop("my_environment")


@pytest.mark.parametrize("target", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_every_link_leads_somewhere(target):
    assert (ROOT / target).exists()
