"""What a run loses when it is interrupted: nothing that was acknowledged."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter

import psutil
import pytest

from asyncopd.runtime.journal import Journal
from asyncopd.scheduler.events import CheckpointSaved, RolledBack, StepTrained

pytestmark = pytest.mark.integration


def _wait_for(directory, said, process, seconds=120.0):
    """Wait until the journal says so."""
    path = directory / "journal.jsonl"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and said in path.read_text():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"{said!r} was not seen in {seconds} s")


def _start(command, directory, **overrides):
    return subprocess.Popen(command(directory, **overrides), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def _events(directory):
    journal, events = Journal.reopen(directory / "journal.jsonl")
    await journal.close()
    return events


def _trained_once(events):
    """Whether each step counts once, given that a rollback takes back the steps after it."""
    steps: list[int] = []
    for event in events:
        if isinstance(event, StepTrained):
            assert event.step == len(steps)
            steps.append(event.step)
        elif isinstance(event, RolledBack):
            del steps[event.step :]
    return steps == [0, 1, 2, 3, 4, 5]


async def test_a_killed_run_resumes_and_trains_every_step_once(tmp_path, command, run):
    process = _start(command, tmp_path)
    _wait_for(tmp_path, '"StepTrained"', process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not alive, "a killed run left processes behind"
    done = run(tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["conservation"]["holds"]
    assert summary["conservation"]["attempts"]["trained"] == 6 * 8
    assert summary["staleness"]["max"] <= 2
    assert _trained_once(await _events(tmp_path))


async def test_interrupt_saves_a_checkpoint_and_says_how_to_resume(tmp_path, command, run):
    process = _start(command, tmp_path)
    _wait_for(tmp_path, '"StepTrained"', process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"asyncopd train {tmp_path / 'config.yaml'} --resume" in " ".join(output.split())
    assert "Traceback" not in errors
    assert any(isinstance(event, CheckpointSaved) for event in await _events(tmp_path))
    done = run(tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    assert _trained_once(await _events(tmp_path))


@pytest.mark.parametrize("role", ["learner", "teacher"])
async def test_a_killed_worker_is_replaced_and_the_run_goes_on(tmp_path, command, role):
    process = _start(command, tmp_path)
    _wait_for(tmp_path, '"StepTrained"', process)
    workers = [p for p in psutil.Process(process.pid).children() if "spawn_main" in " ".join(p.cmdline())]
    busy = Counter({p.pid: p.memory_info().rss for p in workers})
    assert len(busy) >= 2
    # Both are spawned in the same way; the run must survive the loss of either.
    index = 0 if role == "learner" else 1
    psutil.Process([pid for pid, _ in busy.most_common(2)][index]).kill()
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors + output
    assert json.loads((tmp_path / "summary.json").read_text())["conservation"]["holds"]
    assert _trained_once(await _events(tmp_path))


@pytest.mark.parametrize("times", [1, 2])
async def test_stopped_in_an_evaluation_it_ends_at_once_and_resumes(tmp_path, command, run, times):
    process = _start(command, tmp_path, evaluation__tasks="200")
    _wait_for(tmp_path, "", process)
    while "measuring" not in process.stdout.readline():
        pass
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, ""), output
    assert "--resume" in output
    assert run(tmp_path, "--resume", evaluation__tasks="0").returncode == 0


def test_killed_after_its_last_step_it_measures_the_trained_student_and_counts_all_steps(tmp_path, run):
    assert run(tmp_path, evaluation__tasks="40", evaluation__teacher="false", run__steps="20").returncode == 0
    whole = json.loads((tmp_path / "summary.json").read_text())
    before = {"student_before": whole["student_before"]}
    (tmp_path / "evaluation.json").write_text(json.dumps(before))
    (tmp_path / "summary.json").unlink()
    done = run(tmp_path, "--resume", evaluation__tasks="40", evaluation__teacher="false", run__steps="20")
    assert done.returncode == 0, done.stderr
    resumed = json.loads((tmp_path / "summary.json").read_text())
    assert resumed["student_after"]["success"] == whole["student_after"]["success"]
    for figure in ("staleness", "cache", "conservation"):
        assert resumed[figure] == whole[figure]


def test_a_finished_run_is_not_trained_again(tmp_path, run):
    assert run(tmp_path).returncode == 0
    journal = (tmp_path / "journal.jsonl").read_bytes()
    assert run(tmp_path, "--resume").returncode == 0
    assert (tmp_path / "journal.jsonl").read_bytes() == journal
    again = run(tmp_path)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
