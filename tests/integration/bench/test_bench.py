"""Each side of a run can be measured alone, and our engine against bare vLLM."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncopd.bench.engine import bench_engine
from asyncopd.bench.setting import EngineBench
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]  # four starts of vLLM, one after the other

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
SMALL = {
    "engine.use": "torch",
    "run.steps": "4",
    "run.checkpoint_every": "2",
    "scheduler.batch_size": "8",
    "rollout.max_concurrent": "16",
    "evaluation.tasks": "0",
}


def _asyncopd(*words):
    command = [sys.executable, "-m", "asyncopd.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def _sets(settings):
    return [word for field, value in settings.items() for word in ("--set", f"{field}={value}")]


def _figures(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a finished run, whose objective needs all that a payload can hold."""
    directory = tmp_path_factory.mktemp("bench") / "run"
    settings = {"run.dir": str(directory), "objective.use": "reverse_kl_head_tail", "objective.width": "16"}
    done = _asyncopd("train", QUICKSTART, *_sets(SMALL | settings))
    assert done.returncode == 0, done.stderr
    return directory


def test_a_replayed_run_takes_the_very_steps_it_recorded(run):
    figures = _figures(_asyncopd("bench", "replay", str(run), "--json"))
    assert figures["steps"] == 4
    assert figures["loss_difference_max"] == 0
    trained = json.loads((run / "summary.json").read_text())["conservation"]["trained"]
    assert figures["trained_tokens_per_second"] > trained / figures["seconds"]
    assert figures["peak_memory_mib"]["resident"] > 100


def test_a_replay_may_be_short_and_differ_in_what_does_not_matter(run):
    done = _asyncopd(
        "bench", "replay", str(run), "--steps", "2", "--json", *_sets({"learner.micro_batch_tokens": "64"})
    )
    figures = _figures(done)
    assert figures["steps"] == 2
    assert 0 < figures["loss_difference_max"] < 1e-4


def test_what_holds_no_run_cannot_be_replayed(tmp_path):
    done = _asyncopd("bench", "replay", str(tmp_path))
    assert done.returncode == 2
    assert "holds no recorded training" in done.stderr


def test_rollouts_run_alone_and_are_those_of_a_training():
    figures = _figures(_asyncopd("bench", "rollout", QUICKSTART, "--episodes", "24", "--json", *_sets(SMALL)))
    assert figures["episodes"] == 24 and figures["failed"] == 0
    assert figures["turns_per_second"] >= figures["episodes_per_second"] > 0
    assert figures["turn_seconds"]["p50"] <= figures["turn_seconds"]["p99"] <= figures["episode_seconds"]["p99"]


def test_turns_that_leave_no_room_for_a_prompt_are_refused():
    done = _asyncopd("bench", "engine", QUICKSTART, "--tokens", "256")
    assert done.returncode == 2
    assert "256 tokens a turn: leave no room in engine.max_context = 256" in done.stderr


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def engine_figures(said):
    """What a tiny comparison with bare vLLM says."""
    config = load(Path(QUICKSTART), ["scheduler.batch_size=8"], TrainConfig)
    small = EngineBench(concurrent=8, requests=8, turn_tokens=8, repeats=1, server=False)
    return asyncio.run(bench_engine(config, small, said.append))


def test_our_engine_is_measured_against_bare_vllm_with_a_learner_beside_both(engine_figures, said):
    assert 0.1 < engine_figures["throughput_ratio"] < 10
    assert engine_figures["throughput_ratio"] == pytest.approx(
        engine_figures["tokens_per_second"]["asyncopd"] / engine_figures["tokens_per_second"]["vllm"]
    )
    assert 0.3 < engine_figures["cpu_ratio"] < 3
    assert engine_figures["learner_step_seconds"] > 0
    assert engine_figures["loop_lag_p99_ms"] >= 0
    assert any("bare vLLM" in line for line in said)


def test_engine_and_learner_agree_to_rounding_in_each_dtype(engine_figures):
    assert engine_figures["logprob_diff_mean"]["float32"] < 1e-4
    assert engine_figures["logprob_diff_max"]["float32"] < 1e-2
    assert 1e-4 < engine_figures["logprob_diff_mean"]["bfloat16"] < 0.15
    for dtype in ("float32", "bfloat16"):
        mean, p99, most = (engine_figures[f"logprob_diff_{name}"][dtype] for name in ("mean", "p99", "max"))
        assert mean <= p99 <= most


def test_the_cost_of_each_kind_of_draws_is_told_apart(engine_figures):
    assert set(engine_figures["draws_cost"]) == {"head_32", "head_64", "iid_64", "head_32_tail_32"}
    assert all(-1 < cost < 20 for cost in engine_figures["draws_cost"].values())
