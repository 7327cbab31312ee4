"""Success is measured over what the agent did, not over what broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from asyncopd.config.rollout import RolloutSection
from asyncopd.evaluate.evaluate import evaluate
from asyncopd.evaluate.interval import wilson
from asyncopd.records import GenerateRequest, Task
from asyncopd.rollout.pool import RolloutError, RolloutPool
from asyncopd.seams import EngineDied


def tasks(count: int) -> list[Task]:
    return [Task(id=str(index), domain="shop", data={"item": "cup"}) for index in range(count)]


@pytest.fixture
def pool(shop: type, scripted_engine: type, byte_chat: Any) -> Callable[..., RolloutPool]:
    def build(script: Callable[[GenerateRequest], str], **options: Any) -> RolloutPool:
        section = RolloutSection(max_concurrent=4, **options)
        return RolloutPool(scripted_engine(byte_chat, script), shop, byte_chat, section, seed=3)

    return build


async def test_share_interval_tokens_and_outcomes(pool) -> None:
    answers = iter(["it is 4", "it is 5", "it is 4", "it is 4"])
    evaluation = await evaluate(place := pool(lambda _: next(answers)), tasks(4), max_retries=2)
    assert (evaluation.success, evaluation.tasks) == (0.75, 4)
    assert (evaluation.low, evaluation.high) == wilson(3, 4)
    assert evaluation.outcomes == {"success": 3, "failure": 1}
    assert evaluation.tokens == sum(len(ids) for ids in place.engine.said)
    assert evaluation.seconds > 0


async def test_infrastructure_errors_are_retried_then_left_out_never_failures(pool) -> None:
    tries: Counter[int] = Counter()

    def flaky(request: GenerateRequest) -> str:
        index = (-1 - int(request.trajectory_id)) // 3  # three tries a task
        tries[index] += 1
        if index == 1 or (index == 2 and tries[index] < 3):
            raise ConnectionError("gone")
        return "it is 4"

    evaluation = await evaluate(place := pool(flaky), tasks(4), max_retries=2)
    assert (evaluation.success, evaluation.tasks) == (1.0, 3)
    assert (evaluation.low, evaluation.high) == wilson(3, 3)
    assert evaluation.outcomes == {"success": 3, "infrastructure_error": 1}
    assert tries == {0: 1, 1: 3, 2: 3, 3: 1}
    ids = [request.request_id for request in place.engine.requests]
    assert len(set(ids)) == len(ids)


async def test_nothing_measured_is_an_error_not_a_zero(pool) -> None:
    def broken(request: GenerateRequest) -> str:
        raise ConnectionError("gone")

    with pytest.raises(RolloutError, match="ConnectionError: gone"):
        await evaluate(pool(broken), tasks(2), max_retries=2)


async def test_death_of_the_engine_ends_the_evaluation(pool) -> None:
    def die(request: GenerateRequest) -> str:
        raise EngineDied("engine e is gone")

    with pytest.raises(EngineDied):
        await evaluate(pool(die), tasks(3), max_retries=2)
