"""Weights broadcast to a real vLLM engine, tied and untied, against the learner's numbers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.tiny_models import learner_logp, make_model, mixed_logp, prompt, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import SendOrder, Version, WeightFile
from asyncopd.seams import DeadlineExceeded, Engine, WeightReceiver
from asyncopd.tensors.sender import Sender
from asyncopd.weights.collective import CollectiveWeightSync
from asyncopd.weights.protocol import PublishFailed

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECTION = EngineSection(max_context=1024, kv_cache_mib=64)


class ThreadSource:
    """A `WeightSource` whose learner is a thread of this process; `model` may move on after a send."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._sender = Sender()

    async def send(self, order: SendOrder) -> WeightFile:
        return await asyncio.to_thread(self._sender.send, order, self.model.named_parameters())


@dataclasses.dataclass
class Served:
    """An engine, the learner it follows, and the models behind the versions it has served."""

    engine: Engine
    sync: CollectiveWeightSync
    source: ThreadSource
    tied: bool
    models: dict[Version, torch.nn.Module]

    @property
    def next(self) -> Version:
        return Version(0, max(self.models).step + 1)

    async def publish(self) -> None:
        version = self.next
        self.source.model = self.models[version] = make_model(version.step, tied=self.tied)
        report = await self.sync.publish(version, self.source)
        assert report.failed == {}
        assert self.engine.version == version

    async def check(self, seed: int = 0) -> None:
        """Generate, and hold the log-probs against the model of the engine's version."""
        request = turn(prompt(20, seed), max_tokens=30)
        found = await self.engine.generate(request)
        assert (found.version_R == self.engine.version.pack()).all()
        model = self.models[self.engine.version]
        np.testing.assert_allclose(found.logp_R, learner_logp(model, request.prompt_ids, found.ids_R), atol=1e-3)


def make_sync(receiver: WeightReceiver) -> CollectiveWeightSync:
    return CollectiveWeightSync(
        lambda: [receiver],
        transport="gloo",
        host="127.0.0.1",
        workers=1,
        timeout_s=30,
        learner_timeout_s=30,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[True, False], ids=["tied", "untied"])
async def served(request: pytest.FixtureRequest, checkpoints: Callable[..., Path]) -> AsyncIterator[Served]:
    tied = request.param
    engine = await start_engine("student-0", checkpoints(0, tied=tied), SECTION, dtype="float32", threads=1, seed=0)
    sync = make_sync(engine.receiver)
    first = make_model(0, tied=tied)
    yield Served(engine, sync, ThreadSource(first), tied, {Version(0, 0): first})
    sync.close()
    await engine.close()


async def test_log_probs_are_the_learners_after_every_broadcast(served: Served) -> None:
    await served.check()
    for seed in range(3):
        await served.publish()
        await served.check(seed)


async def test_a_broadcast_in_flight_changes_weights_between_two_tokens(served: Served) -> None:
    turns = [turn(prompt(30, seed), max_tokens=600, seed=seed) for seed in range(8)]
    generating = [asyncio.create_task(served.engine.generate(request)) for request in turns]
    await asyncio.sleep(0.25)
    first = served.engine.version
    await served.publish()
    for request, found in zip(turns, await asyncio.gather(*generating), strict=True):
        start = int(np.flatnonzero(np.diff(found.version_R))[0]) + 1
        assert (found.version_R[:start] == first.pack()).all()
        assert (found.version_R[start:] == served.engine.version.pack()).all()
        spans = [(served.models[first], 0), (served.models[served.engine.version], start)]
        np.testing.assert_allclose(found.logp_R, mixed_logp(spans, request.prompt_ids, found.ids_R), atol=2e-3)


async def test_another_models_layout_is_refused_and_the_old_weights_serve_on(served: Served) -> None:
    other = ThreadSource(make_model(99, tied=served.tied).model.layers[0])
    with pytest.raises(PublishFailed, match=r"engine student-0: prepare of version .* failed: .*has shape"):
        await served.sync.publish(served.next, other)
    await served.check()
    await served.publish()
    await served.check()


async def test_an_engine_that_missed_the_commit_is_brought_up_to_date_though_the_learner_moved_on(
    served: Served,
) -> None:
    receiver = served.engine.receiver

    class CutOff:
        """The receiver, which never hears that it should commit."""

        name, prepare, freeze = receiver.name, receiver.prepare, receiver.freeze
        receive, thaw = receiver.receive, receiver.thaw

        async def commit(self, version: Version) -> None:
            raise OSError("lost")

    sync = make_sync(CutOff())
    version = served.next
    served.source.model = served.models[version] = make_model(version.step, tied=served.tied)
    with pytest.raises(PublishFailed, match=r"engine student-0: commit of version .* failed: lost"):
        await sync.publish(version, served.source)
    with pytest.raises(DeadlineExceeded, match="whose last weight update failed and was not repeated"):
        await served.engine.generate(turn(prompt(5), within_s=0.2))
    served.source.model = make_model(98, tied=served.tied)
    assert await sync.catch_up(receiver) == version
    await served.check()
    sync.close()
