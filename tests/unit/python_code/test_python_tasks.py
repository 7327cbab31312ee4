"""Problems: many, of each level, in splits that share none, with references that are right by definition."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pydantic import ValidationError

from asyncopd_envs.python_code.env import PythonCode
from asyncopd_envs.python_code.families import FAMILIES
from asyncopd_envs.python_code.problem import problem

LEVELS = ("easy", "medium", "hard")


def key(task):
    return json.dumps(task.data, sort_keys=True)


def test_no_problem_is_in_both_splits_and_each_family_is_in_both():
    train, test = PythonCode.tasks("train"), PythonCode.tasks("test")
    assert len({key(task) for task in (*train, *test)}) == len(train) + len(test) > 800
    assert len({task.id for task in (*train, *test)}) == len(train) + len(test)
    for split in (train, test):
        assert {task.domain for task in split} == set(FAMILIES)
    assert len(FAMILIES) >= 12 and len(test) > 100


def test_ids_are_the_same_everywhere():
    assert PythonCode.tasks("test")[0].id == "stack_machine-9b341e38a26c"


def test_a_longer_list_begins_with_a_shorter_one_and_the_first_are_of_different_families():
    all_of_them = PythonCode.tasks("train")
    assert PythonCode.tasks("train", train_tasks=40) == all_of_them[:40]
    assert len({task.domain for task in all_of_them[: len(FAMILIES)]}) == len(FAMILIES)


@pytest.mark.parametrize("level", LEVELS)
def test_difficulty_chooses_families(level):
    tasks = PythonCode.tasks("train", difficulty=level)
    assert {FAMILIES[task.domain].level for task in tasks} == {level}
    assert len(tasks) > 100


def test_wrong_options_are_refused_by_name():
    with pytest.raises(ValueError, match=r"train_tasks: 5000 is more than the \d+ of difficulty 'easy'"):
        PythonCode.tasks("train", difficulty="easy", train_tasks=5000)
    with pytest.raises(ValueError, match="python has no split 'dev'; it has train and test"):
        PythonCode.tasks("dev")
    for wrong in (
        {"difficulty": "odd"},
        {"train_tasks": 0},
        {"test_tasks": 0},
        {"examples": 11},
        {"examples": -1},
        {"hidden_tests": 0},
        {"hidden_tests": 51},
        {"shown_characters": 99},
        {"all_or_nothing": "perhaps"},
        {"limits": {"cpu_s": 0}},
        {"colour": "red"},
    ):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            PythonCode(**wrong)


def test_tasks_survive_being_written_as_json():
    for task in PythonCode.tasks("test"):
        assert json.loads(json.dumps(task.data)) == task.data


@pytest.mark.parametrize("name", FAMILIES)
def test_cases_of_a_problem_are_the_same_again_differ_and_are_not_shown_twice(name):
    for parameters in list(FAMILIES[name].parameters())[::4]:
        made, again = (problem(name, parameters, examples=3, hidden=12) for _ in range(2))
        assert (made.examples, made.hidden, made.question) == (again.examples, again.hidden, again.question)
        arguments = [json.dumps(case.arguments) for case in (*made.examples, *made.hidden)]
        assert len(set(arguments)) == 15
        assert not any(case in made.examples for case in made.hidden)
        for case in made.hidden:
            assert json.loads(json.dumps([case.arguments, case.expected])) == [case.arguments, case.expected]


def test_the_same_answer_to_every_test_is_seldom_right():
    shares = []
    for task in PythonCode.tasks("train")[::5]:
        hidden = problem(**task.data, examples=3, hidden=12).hidden
        answers = Counter(json.dumps(case.expected) for case in hidden)
        shares.append(answers.most_common(1)[0][1] / len(hidden))
    assert sum(shares) / len(shares) < 0.15


def test_most_and_fewest_cases_can_be_made_of_every_problem():
    for task in PythonCode.tasks("test")[::4]:
        most = problem(**task.data, examples=10, hidden=50)
        assert (len(most.examples), len(most.hidden)) == (10, 50)
        fewest = problem(**task.data, examples=0, hidden=1)
        assert "Examples" not in fewest.question and len(fewest.hidden) == 1
