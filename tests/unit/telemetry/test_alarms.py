"""An alarm is said once a cause, and kept with its count."""

from __future__ import annotations

import numpy as np
import pytest

from asyncopd.config.engine import EngineSection
from asyncopd.config.rollout import RolloutSection
from asyncopd.records import Differences
from asyncopd.telemetry.alarms import Alarms, agreement_limit, disagreement


def test_a_cause_is_said_once_and_counted_on():
    said = []
    alarms = Alarms(said.append)
    for step in (3, 4, 5):
        alarms.ring("a", step, f"message {step}")
    alarms.ring("b", 5, "another")
    assert said == ["step 3: message 3", "step 5: another"]
    assert alarms.to_json() == [
        {"cause": "a", "step": 3, "message": "message 3", "count": 3},
        {"cause": "b", "step": 5, "message": "another", "count": 1},
    ]


def test_a_resumed_run_goes_on_counting_and_does_not_say_it_again():
    before, said = Alarms(lambda _: None), []
    before.ring("a", 1, "first")
    after = Alarms(said.append)
    after.restore(before.to_json())
    after.ring("a", 9, "again")
    assert said == []
    assert after.to_json() == [{"cause": "a", "step": 1, "message": "first", "count": 2}]


def test_disagreement_names_its_figures_and_the_ways_out():
    message = disagreement(Differences.of(np.array([0.1, -0.3])), 0.15)
    assert message is not None
    for part in ("0.2 nats", "2 tokens", "engine.logprob_alarm = 0.15", "student.dtype", "engine.options"):
        assert part in message


def test_rounding_is_no_disagreement_and_neither_is_nothing():
    assert disagreement(Differences.of(np.array([0.1])), 0.15) is None
    assert disagreement(Differences(), 0.001) is None


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 0.001), ("bfloat16", 0.15)])
def test_the_limit_follows_the_dtype_unless_it_is_set(dtype, limit):
    assert agreement_limit(EngineSection(), RolloutSection(), dtype) == limit
    assert agreement_limit(EngineSection(logprob_alarm=0.5), RolloutSection(), dtype) == 0.5
    assert agreement_limit(EngineSection(options={"quantization": "fp8"}), RolloutSection(), dtype) == 0.15


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
def test_a_cut_distribution_is_not_held_against_the_learners(cut):
    assert agreement_limit(EngineSection(logprob_alarm=0.5), RolloutSection(**cut), "float32") == float("inf")
