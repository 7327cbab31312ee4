"""Training on draws of the student, started as a user starts it."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.integration


def _lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_support_of_the_students_choice_trains_on_the_reference_engine(tmp_path, run):
    done = run(tmp_path, objective__options="{support: student}", objective__width="16", run__steps="3")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["conservation"]["holds"] and summary["conservation"]["trained"] > 0
    assert all(line["grad_norm"] > 0 for line in _lines(tmp_path))


def test_head_and_tail_of_vllm_teach_within_a_few_steps(tmp_path, run):
    settings = {"engine.use": "vllm", "run.steps": "10", "scheduler.batch_size": "32"}
    done = run(tmp_path, objective__use="reverse_kl_head_tail", objective__width="32", **settings)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["conservation"]["holds"] and summary["conservation"]["trained"] > 0
    lines = _lines(tmp_path)
    first, last = ([line["teacher_kl"] for line in part] for part in (lines[:3], lines[-3:]))
    assert sum(last) < 0.7 * sum(first)
    assert lines[0]["logprob_diff_max"] < 1e-3


def test_what_would_bias_it_is_refused_before_anything_is_spent(tmp_path, run):
    done = run(tmp_path / "run", "--dry-run", rollout__top_p="0.9", objective__use="reverse_kl_mc")
    assert done.returncode == 2
    assert "rollout.top_p 0.9: objective reverse_kl_mc supposes" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
