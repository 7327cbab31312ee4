"""Engines killed while a run trains: it goes on, without going back to a checkpoint, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

import asyncopd
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig
from asyncopd.engines.member import Member, WatchedReceiver
from asyncopd.runtime.callbacks import Callback
from asyncopd.runtime.journal import Journal
from asyncopd.scheduler.events import EngineLost, EngineReady, RolledBack

from .conftest import CONFIGS, SMALL

pytestmark = pytest.mark.integration


def _kill_a_core() -> None:
    """Kill one of the engine cores that this process started, or that its servers did."""
    children = psutil.Process().children(recursive=True)
    core = next(child for child in children if "EngineCore" in child.name())
    core.kill()


def _killing(method: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return `method`, which kills a core just before its call of that number."""
    left = [calls]

    async def wrapped(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            _kill_a_core()
        return await method(*arguments)

    return wrapped


class _Warnings(Callback):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_warning(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize(
    ("use", "replicas", "place", "calls", "steps"),
    [
        ("vllm", 1, (Member, "generate"), 60, 6),
        ("vllm_server", 2, (WatchedReceiver, "receive"), 5, 60),  # the other goes on meanwhile
    ],
    ids=["the-only-one-in-generation", "one-of-two-servers-in-an-update"],
)
async def test_a_killed_engine_is_replaced_without_a_rollback(
    tmp_path, monkeypatch, use: str, replicas: int, place: tuple[type, str], calls: int, steps: int
) -> None:
    kind, name = place
    monkeypatch.setattr(kind, name, _killing(getattr(kind, name), calls))
    settings = {**SMALL, "run.dir": str(tmp_path / "run"), "run.steps": str(steps)}
    settings |= {"engine.use": use, "engine.replicas": str(replicas)}
    config = load(CONFIGS / "quickstart.yaml", [f"{field}={value}" for field, value in settings.items()], TrainConfig)
    warnings = _Warnings()
    summary = asyncopd.train(config, callbacks=[warnings])
    assert summary["conservation"]["holds"]
    assert summary["conservation"]["attempts"]["trained"] == steps * 8
    assert summary["staleness"]["max"] <= 2
    journal, events = Journal.reopen(tmp_path / "run" / "journal.jsonl")
    await journal.close()
    assert not [event for event in events if isinstance(event, RolledBack)]
    (lost,) = [event.engine for event in events if isinstance(event, EngineLost)]
    assert [said for said in warnings.said if said.startswith(f"engine {lost}") and f"{lost}.1 starts" in said]
    assert summary["engines"][lost]["lost"]
    if replicas == 1:
        # Whatever was trained after the loss, the replacement generated, with the newest weights.
        assert f"{lost}.1" in {event.engine for event in events if isinstance(event, EngineReady)}
        assert summary["engines"][f"{lost}.1"]["tokens"] > 0
        assert summary["logprob_diff"]["max"] < 1e-2
