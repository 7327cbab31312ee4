"""A publish that fails costs the engines that failed it, and the run only where the learner did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from asyncopd.records import PublishReport, SendOrder, Version
from asyncopd.runtime.channels import AsyncioChannel
from asyncopd.runtime.stages import LearnerStage
from asyncopd.scheduler.commands import PublishWeights
from asyncopd.telemetry.metrics import Metrics
from asyncopd.tensors.rendezvous import BroadcastBroken
from asyncopd.weights.protocol import NoEngineCame, PublishFailed

VERSION = Version(0, 3)
ORDER = SendOrder(version=VERSION, path="w", format="mapped")


class Learner:
    async def send(self, order: SendOrder) -> str:
        return "sent"


class Unheard(Learner):
    async def send(self, order: SendOrder) -> str:
        raise BroadcastBroken("members [1] did not come")


class Sync:
    """Has the learner send, then ends as `outcome` says."""

    def __init__(self, outcome: Exception | Mapping[str, str]) -> None:
        self.outcome = outcome

    async def publish(self, version: Version, source: Any) -> PublishReport:
        with contextlib.suppress(BroadcastBroken):
            await source.send(ORDER)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return PublishReport(
            version=version, send_seconds=1, prepare_seconds=1, pause_seconds=1, bytes=4, dense_bytes=4,
            failed=dict(self.outcome),
        )  # fmt: skip


async def published(
    outcome: Exception | Mapping[str, str], learner: type[Learner] = Learner
) -> tuple[list[tuple[str, str]], Metrics]:
    """Return which engines are drained for what, and what was counted, after one publish. Raises what ends the run."""
    drained: list[tuple[str, str]] = []
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    channel, metrics, nothing = AsyncioChannel("learning", 8), Metrics(), SimpleNamespace()
    stage = LearnerStage(
        channel, learner(), Sync(outcome), lambda *loss: drained.append(loss), nothing, nothing, nothing, metrics,
        nothing, spawn,
    )  # fmt: skip
    await channel.put(PublishWeights(version=VERSION))
    working = asyncio.create_task(stage.work())
    await channel.emptied()
    working.cancel()
    await stage.published()
    return drained, metrics


async def test_engines_that_did_not_come_along_are_drained_and_the_update_counts() -> None:
    drained, metrics = await published({"student-1": "engine student-1: commit of version 0.3 failed"})
    assert drained == [("student-1", "engine student-1: commit of version 0.3 failed")]
    assert metrics.updates["count"] == 1


async def test_the_run_goes_on_where_no_engine_came() -> None:
    drained, metrics = await published(NoEngineCame({"student-0": "engine student-0 died"}))
    assert drained == [("student-0", "engine student-0 died")]
    assert metrics.updates["count"] == 0


async def test_the_run_goes_on_where_there_was_no_engine() -> None:
    drained, _ = await published(NoEngineCame({}))
    assert drained == []


async def test_the_run_goes_on_where_a_broadcast_broke_for_lack_of_engines() -> None:
    drained, _ = await published(NoEngineCame({"student-0": "engine student-0 died"}), Unheard)
    assert drained == [("student-0", "engine student-0 died")]


async def test_the_learner_s_failure_ends_the_run() -> None:
    with pytest.raises(PublishFailed, match="the learner: send"):
        await published(PublishFailed("the learner: send of version 0.3 failed: No space left on device"))
