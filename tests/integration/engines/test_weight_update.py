"""Weights that change under a real vLLM engine, tied and untied, against the learner's numbers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.tiny_models import ModelSource, learner_logp, make_model, mixed_logp, prompt, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import PublishReport, SendOrder, Version, WeightFile
from asyncopd.seams import DeadlineExceeded, Engine, WeightReceiver
from asyncopd.tensors.mapped import write_tensors
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECTION = EngineSection(max_context=1024, kv_cache_mib=64)
SHARED_MEMORY = Path("/dev/shm")


@dataclasses.dataclass
class Served:
    """An engine, and the models behind the versions it has served."""

    engine: Engine
    sync: FileWeightSync
    tied: bool
    models: dict[Version, torch.nn.Module]

    @property
    def model(self) -> torch.nn.Module:
        return self.models[self.engine.version]

    @property
    def next(self) -> Version:
        return Version(0, max(self.models).step + 1)

    async def publish(self) -> PublishReport:
        version = self.next
        self.models[version] = make_model(version.step, tied=self.tied)
        return await self.sync.publish(version, ModelSource(self.models[version]))

    async def check(self, length: int = 20, seed: int = 0) -> None:
        """Generate, and hold the log-probs against the model of the engine's version."""
        request = turn(prompt(length, seed), max_tokens=30)
        found = await self.engine.generate(request)
        assert (found.version_R == self.engine.version.pack()).all()
        np.testing.assert_allclose(found.logp_R, learner_logp(self.model, request.prompt_ids, found.ids_R), atol=1e-3)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[True, False], ids=["tied", "untied"])
async def served(request: pytest.FixtureRequest, checkpoints: Callable[..., Path]) -> AsyncIterator[Served]:
    tied = request.param
    engine = await start_engine("student-0", checkpoints(0, tied=tied), SECTION, dtype="float32", threads=1, seed=0)
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(SHARED_MEMORY), SECTION.update_timeout_s)
    yield Served(engine, sync, tied, {Version(0, 0): make_model(0, tied=tied)})
    sync.close()
    await engine.close()


def tear(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"torn")


async def test_log_probs_are_the_learners_after_every_update(served: Served) -> None:
    await served.check()
    for _ in range(3):
        report = await served.publish()
        assert served.engine.version == report.version
        assert 0 < report.pause_seconds < 10
        await served.check()


async def test_later_requests_reuse_no_prefix_of_older_weights(served: Served) -> None:
    for seed in range(3):
        await served.check(length=400, seed=seed)
    await served.publish()
    for seed in range(3):
        await served.check(length=400, seed=seed)


async def test_requests_in_flight_go_on_with_exactly_the_versions_that_sampled_them(served: Served) -> None:
    turns = [turn(prompt(30, seed), max_tokens=600, seed=seed) for seed in range(8)]
    first = served.engine.version
    generating = [asyncio.create_task(served.engine.generate(request)) for request in turns]
    for _ in range(2):
        await asyncio.sleep(0.25)
        await served.publish()
    for request, found in zip(turns, await asyncio.gather(*generating), strict=True):
        assert len(found.ids_R) == 600
        starts = [0, *(np.flatnonzero(np.diff(found.version_R)) + 1)]
        versions = [Version.unpack(int(found.version_R[start])) for start in starts]
        assert versions == [Version(0, first.step + offset) for offset in range(3)]
        assert (found.mixed_kv_R == (found.version_R != first.pack())).all()
        spans = [(served.models[version], start) for version, start in zip(versions, starts, strict=True)]
        np.testing.assert_allclose(found.logp_R, mixed_logp(spans, request.prompt_ids, found.ids_R), atol=2e-3)


async def test_a_request_waits_for_its_version(served: Served) -> None:
    wanted = served.next
    waiting = asyncio.create_task(served.engine.generate(turn(prompt(5), min_version=wanted)))
    await served.check()
    assert not waiting.done()
    await served.publish()
    assert ((await waiting).version_R == wanted.pack()).all()


async def test_a_torn_file_is_refused_and_the_old_weights_serve_on(served: Served) -> None:
    class Torn(ModelSource):
        async def send(self, order: SendOrder) -> WeightFile:
            sent = await super().send(order)
            tear(sent.path, sent.tensors[3].offset)
            return sent

    generating = asyncio.create_task(served.engine.generate(turn(prompt(5), max_tokens=300)))
    with pytest.raises(PublishFailed, match=r"engine student-0: prepare of version .* failed: .*the checksum"):
        await served.sync.publish(served.next, Torn(make_model(99, tied=served.tied)))
    assert ((await generating).version_R == served.engine.version.pack()).all()
    await served.check()


async def test_an_incomplete_set_of_weights_is_refused(served: Served) -> None:
    class Incomplete(ModelSource):
        async def send(self, order: SendOrder) -> WeightFile:
            parameters = dict(self.model.named_parameters())
            del parameters["model.layers.1.self_attn.k_proj.weight"]
            return write_tensors(order.path, order.version, parameters.items())

    with pytest.raises(PublishFailed, match=r"layers\.1\.self_attn\.k_proj\.weight has shape none"):
        await served.sync.publish(served.next, Incomplete(make_model(99, tied=served.tied)))
    await served.check()
    await served.publish()
    await served.check()


async def test_weights_loaded_and_not_committed_sample_nothing_until_a_publish_succeeds(served: Served) -> None:
    class CutOff:
        """The receiver of the engine, which never hears that it should commit."""

        def __init__(self, receiver: WeightReceiver) -> None:
            self.name, self.prepare, self.freeze = receiver.name, receiver.prepare, receiver.freeze
            self.receive, self.thaw = receiver.receive, receiver.thaw

        async def commit(self, version: Version) -> None:
            raise OSError("lost")

    generating = asyncio.create_task(served.engine.generate(turn(prompt(5), max_tokens=700)))
    await asyncio.sleep(0.1)
    first = served.engine.version
    cut_off = FileWeightSync(lambda: [CutOff(served.engine.receiver)], OwnedDirectory(SHARED_MEMORY), 60)
    with pytest.raises(PublishFailed, match=r"engine student-0: commit of version .* failed: lost"):
        await cut_off.publish(served.next, ModelSource(make_model(99, tied=served.tied)))
    cut_off.close()
    with pytest.raises(DeadlineExceeded, match="whose last weight update failed and was not repeated"):
        await served.engine.generate(turn(prompt(5), within_s=0.2))
    assert not generating.done()
    await served.publish()
    assert set((await generating).version_R) == {first.pack(), served.engine.version.pack()}
    await served.check()
