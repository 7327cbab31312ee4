"""Broadcasting under injected faults, by real process groups of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import torch
from support.broadcast_processes import LearnerProcess, WorkerEngine, weights_of

from asyncopd.errors import UserError
from asyncopd.records import Version
from asyncopd.weights.collective import CollectiveWeightSync
from asyncopd.weights.protocol import NoEngineCame, PublishFailed

PHASES = ["prepare", "freeze", "receive", "commit", "thaw"]
TIMEOUT_S = 30.0
HANG_TIMEOUT_S = 1.5  # where it has to pass
V1, V2 = Version(0, 1), Version(0, 2)


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    """Return a function that starts a process, or a sync, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def started(kind: Callable[..., Any], *arguments: Any) -> Any:
            process = kind(*arguments)
            stack.callback(process.close if isinstance(process, CollectiveWeightSync) else process.kill)
            return process

        yield started


def make_sync(engines: list[WorkerEngine], workers: int = 1, timeout_s: float = TIMEOUT_S) -> CollectiveWeightSync:
    return CollectiveWeightSync(
        lambda: engines,
        transport="gloo",
        host="127.0.0.1",
        workers=workers,
        timeout_s=timeout_s,
        learner_timeout_s=timeout_s,
    )


def timeout_of(fault: str) -> float:
    return HANG_TIMEOUT_S if "STOP" in fault else TIMEOUT_S


async def serves(engine: WorkerEngine, version: Version | None) -> bool:
    """Tell whether the workers of `engine` hold exactly the weights of `version`, and it says so."""
    expected = {} if version is None else weights_of(version)
    return engine.version == version and all(
        found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
        for found in await engine.loaded()
    )


async def test_every_engine_gets_every_version_bitwise_from_one_group(start) -> None:
    learner, engines = start(LearnerProcess), [start(WorkerEngine, name) for name in ("a", "b")]
    sync = start(make_sync, engines)
    groups = set()
    for step in (1, 2, 3):
        report = await sync.publish(Version(0, step), learner)
        groups.add(sync._group)
        assert report.failed == {}
        assert report.bytes == sum(tensor.nbytes for tensor in weights_of(Version(0, step)).values())
        for engine in engines:
            assert await serves(engine, Version(0, step))
    assert len(groups) == 1
    assert engines[0].log == PHASES * 3


async def test_every_worker_of_an_engine_is_a_member(start) -> None:
    learner, engines = start(LearnerProcess), [start(WorkerEngine, name, "", "") for name in ("a", "b")]
    sync = start(make_sync, engines, 2)
    assert (await sync.publish(V1, learner)).failed == {}
    for engine in engines:
        assert await serves(engine, V1)


async def test_an_engine_that_loses_one_of_its_workers_is_the_one_named(start) -> None:
    engines = [start(WorkerEngine, "bad", "during:SIGKILL", ""), start(WorkerEngine, "good", "", "")]
    sync = start(make_sync, engines, 2)
    assert list((await sync.publish(V1, start(LearnerProcess))).failed) == ["bad"]
    assert await serves(engines[1], V1)


async def test_a_version_that_no_engine_was_there_for_is_kept_for_one_that_comes(start) -> None:
    learner, sync = start(LearnerProcess), start(make_sync, [])
    with pytest.raises(NoEngineCame, match="no engine is left to publish to"):
        await sync.publish(V1, learner)
    late = start(WorkerEngine, "late")
    assert await sync.catch_up(late) == V1
    assert await serves(late, V1)


async def test_a_newcomer_is_brought_up_to_date_and_joins_the_next_group(start) -> None:
    learner, engines = start(LearnerProcess), [start(WorkerEngine, "early")]
    sync = start(make_sync, engines)
    late = start(WorkerEngine, "late")
    assert await sync.catch_up(late) is None
    await sync.publish(V1, learner)
    assert await sync.catch_up(late) == V1
    assert await serves(late, V1)
    engines.append(late)
    await sync.publish(V2, learner)
    for engine in engines:
        assert await serves(engine, V2)


@pytest.mark.parametrize(
    "fault",
    [
        "before:SIGKILL",
        "during:SIGKILL",
        "after:SIGKILL",
        "verified:SIGKILL",
        "before:SIGSTOP",
        "during:SIGSTOP",
        "refuse",
        "corrupt",
    ],
)
async def test_an_engine_that_fails_a_broadcast_is_named_and_the_others_still_get_it(start, fault: str) -> None:
    learner, good, bad = start(LearnerProcess), start(WorkerEngine, "good"), start(WorkerEngine, "bad", fault)
    engines = [bad, good]
    sync = start(make_sync, engines, 1, timeout_of(fault))
    began = time.monotonic()
    report = await sync.publish(V1, learner)
    assert time.monotonic() - began < TIMEOUT_S / 2
    assert list(report.failed) == ["bad"]
    assert report.failed["bad"].startswith("engine bad: prepare of version 0.1 ")
    assert {"refuse": "unlike", "corrupt": "checksum", "SIGSTOP": "within"}.get(
        fault.rpartition(":")[2], ""
    ) in report.failed["bad"]
    assert bad.log == ["prepare"]
    assert await serves(good, V1)
    engines[0] = start(WorkerEngine, "bad")
    assert await sync.catch_up(engines[0]) == V1
    assert (await sync.publish(V2, learner)).failed == {}
    for engine in engines:
        assert await serves(engine, V2)


@pytest.mark.parametrize("fault", ["before:SIGKILL", "during:SIGKILL", "during:SIGSTOP"])
async def test_a_learner_that_fails_a_broadcast_is_named_and_the_engines_keep_their_weights(start, fault: str) -> None:
    engines = [start(WorkerEngine, "a"), start(WorkerEngine, "b")]
    sync = start(make_sync, engines, 1, timeout_of(fault))
    with pytest.raises(PublishFailed, match=r"^the learner: send of version 0\.1 "):
        await sync.publish(V1, start(LearnerProcess, fault))
    for engine in engines:
        assert engine.log == ["prepare"]
        assert await serves(engine, None)
    assert (await sync.publish(V2, start(LearnerProcess))).failed == {}
    for engine in engines:
        assert await serves(engine, V2)


async def test_a_learner_that_never_begins_is_named_and_asks_nothing_of_the_engines(start) -> None:
    engine = start(WorkerEngine, "a")
    sync = start(make_sync, [engine], 1, HANG_TIMEOUT_S)
    with pytest.raises(PublishFailed, match=r"^the learner: send of version 0\.1 did not begin within 1\.5 s"):
        await sync.publish(V1, start(LearnerProcess, "silent"))
    assert engine.log == []


async def test_a_cancelled_publish_frees_its_members_at_once(start) -> None:
    learner, engines = start(LearnerProcess), [start(WorkerEngine, "a"), start(WorkerEngine, "b", "before:SIGSTOP")]
    sync = start(make_sync, engines)
    publishing = asyncio.create_task(sync.publish(V1, learner))
    await asyncio.sleep(0.3)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    del engines[1]
    began = time.monotonic()
    assert (await sync.publish(V2, learner)).failed == {}
    assert time.monotonic() - began < TIMEOUT_S / 2
    assert await serves(engines[0], V2)


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"weights\.host 203\.0\.113\.1: .*this machine"):
        CollectiveWeightSync(list, transport="gloo", host="203.0.113.1", workers=1, timeout_s=1, learner_timeout_s=1)
