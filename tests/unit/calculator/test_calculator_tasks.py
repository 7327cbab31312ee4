"""Splits are disjoint by construction, families even, ids stable."""

from __future__ import annotations

from collections import Counter

import pytest

from asyncopd.records import Task
from asyncopd_envs.calculator.arithmetic import evaluate, written
from asyncopd_envs.calculator.tasks import FAMILIES, generate, split_of


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Task]]:
    return {"train": generate("train", 2000), "test": generate("test", 1000)}


def content(task: Task) -> tuple[str, ...]:
    return (task.data["question"], *(call["result"] for call in task.data["calls"]))


def test_splits_share_no_task(splits: dict[str, list[Task]]) -> None:
    train, test = ({content(task) for task in splits[name]} for name in ("train", "test"))
    assert not train & test
    assert len(train) == 2000 and len(test) == 1000
    assert all(split_of(task) == name for name, tasks in splits.items() for task in tasks)


def test_ids_are_unique_and_hang_on_content_only(splits: dict[str, list[Task]]) -> None:
    tasks = splits["train"] + splits["test"]
    assert len({task.id for task in tasks}) == len(tasks)
    # Written down, since a task that changes its id changes every journal and every cached score.
    assert splits["test"][0].id == "expression-2a8ba7ef2e58"
    assert splits["test"][0].data["question"] == "What is 37+21+77?"


def test_a_longer_list_begins_with_a_shorter(splits: dict[str, list[Task]]) -> None:
    assert generate("test", 100) == splits["test"][:100]


def test_families_are_even(splits: dict[str, list[Task]]) -> None:
    for tasks in splits.values():
        assert set(Counter(task.domain for task in tasks).values()) == {len(tasks) // len(FAMILIES)}


def test_the_worked_calls_lead_to_the_answer(splits: dict[str, list[Task]]) -> None:
    for task in splits["test"]:
        for call in task.data["calls"]:
            if call["name"] == "calc":
                assert written(evaluate(call["arguments"]["expression"])) == call["result"]
            else:
                assert str(task.data["prices"][call["arguments"]["item"]]) == call["result"]
        assert task.data["calls"][-1]["result"] == task.data["answer"]
        assert 1 <= len(task.data["calls"]) <= 3


def test_prices_are_not_in_the_question(splits: dict[str, list[Task]]) -> None:
    """Lookups of the same words differ in their answers, so the tool is needed."""
    answers: dict[str, set[str]] = {}
    for task in splits["train"]:
        if task.domain == "price":
            answers.setdefault(task.data["question"], set()).add(task.data["answer"])
    assert max(map(len, answers.values())) > 3


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        generate("dev", 1)
    with pytest.raises(ValueError, match="test_tasks: 50000"):
        generate("test", 50000)
