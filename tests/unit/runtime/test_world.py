"""An environment that fails is refused by name before anything is spent."""

from __future__ import annotations

import pytest

from asyncopd.config.environment import EnvironmentSection
from asyncopd.errors import UserError
from asyncopd.runtime.world import open_world
from asyncopd_envs.calculator.env import Calculator


class Twice(Calculator):
    @staticmethod
    def tasks(split, **options):
        return Calculator.tasks(split, **options) * 2


class Unlisted(Calculator):
    @staticmethod
    def tasks(split, **options):
        raise KeyError("tasks.json")


class Unmade(Calculator):
    def __init__(self, **options):
        raise OSError("no such database")


class Unclosed(Calculator):
    async def close(self):
        raise RuntimeError("still busy")


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Twice, "have the id"), (Unlisted, "tasks.json"), (Unmade, "no such database"), (Unclosed, "still busy")],
)
async def test_it_is_named_with_what_it_did(kind, said, monkeypatch):
    monkeypatch.setattr("asyncopd.runtime.world.find_for", lambda *_: kind)
    with pytest.raises(UserError, match=said) as refusal:
        await open_world(EnvironmentSection(use="mine:Environment"))
    assert refusal.value.where == "environment.use mine:Environment"
