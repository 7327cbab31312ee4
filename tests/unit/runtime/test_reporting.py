"""What a run says of the agreement of engine and learner outlives the process that measured it."""

from __future__ import annotations

import numpy as np
import pytest

from asyncopd.config.loading import validate
from asyncopd.config.root import TrainConfig
from asyncopd.records import Differences, StepReport
from asyncopd.runtime.callbacks import Callback
from asyncopd.runtime.reporting import Reporter
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.scheduler.commands import Member, TrainStep
from asyncopd.scheduler.scheduler import Scheduler
from asyncopd.scoring.stats import ScoringStats
from asyncopd.telemetry.metrics import Metrics

MEMBER = Member(attempt=0, group=0, domain="d", reward=1.0, trajectory="t", scores="s", weight=1.0)
SMALL, LARGE = np.full(10, 1e-5), np.full(10, 0.5)


class _Warnings(Callback):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_warning(self, message):
        self.said.append(message)


@pytest.fixture
def config():
    section = {"model": "m"}
    return validate({"student": section, "teacher": section, "environment": {"use": "e"}}, TrainConfig)


@pytest.fixture
def run(tmp_path, config):
    """Return a function that opens the run's reporter, as a process does that begins it or goes on with it."""
    opened = []

    def reporter():
        warnings = _Warnings()
        opened.append(Reporter(RunDirectory(tmp_path), config, [warnings]))
        return opened[-1], warnings.said

    yield reporter
    for one in opened:
        one.close()


@pytest.fixture
def take_step(config):
    """Return a function that tells a reporter of a step with given differences."""
    scheduler = Scheduler(config.scheduler, steps=9, task_count=1, seed=0, max_concurrent=1, checkpoint_every=1)

    def take(reporter, metrics, step, exact_R, mixed_R=SMALL):
        report = StepReport(
            step=step,
            tokens=10,
            attempts=[],
            metrics={"loss": 0.0},
            lag_histogram={0: 10},
            seconds=0.1,
            agreement=Differences.of(exact_R),
            mixed=Differences.of(mixed_R),
        )
        metrics.trained(report.lag_histogram, report.agreement, report.mixed)
        reporter.step(TrainStep(step=step, members=(MEMBER,)), report, scheduler, metrics, ScoringStats())

    return take


def test_a_resumed_run_goes_on_with_the_agreement_of_the_steps_that_count(run, take_step):
    first, before = run(), Metrics()
    take_step(first[0], before, 0, SMALL)
    kept = before.agreement + before.mixed
    take_step(first[0], before, 1, LARGE)
    after = Metrics()
    run()[0].go_on(1, after)
    assert after.agreement + after.mixed == kept
    assert after.lags == {0: 10}


def test_an_alarm_is_said_once_though_the_run_is_resumed(run, take_step):
    first, said = run()
    for step in range(2):
        take_step(first, Metrics(), step, LARGE)
    assert len(said) == 1 and said[0].startswith("step 1: the engine and the learner disagree")
    second, said_again = run()
    second.go_on(2, Metrics())
    take_step(second, Metrics(), 2, LARGE)
    assert said_again == []


def test_tokens_of_mixed_keys_and_values_raise_no_alarm(run, take_step):
    reporter, said = run()
    take_step(reporter, Metrics(), 0, SMALL, mixed_R=LARGE)
    assert said == []


def test_an_engine_that_disagrees_at_the_end_is_named(run):
    reporter, said = run()
    reporter.compared(6, {"student-0": Differences.of(SMALL), "student-1": Differences.of(LARGE)})
    (message,) = said
    assert "engine student-1 and the learner disagree" in message and "student-0" not in message
