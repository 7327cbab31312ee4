"""Adapters that reach a real vLLM alone, and weights that it quantises, against the learner's numbers.

Two engines, each started once: one in float32 with tied embeddings, one in bfloat16 that quantises to FP8.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.adapters import AdapterSource, adapted_model, make_adapter
from support.tiny_models import ModelSource, learner_logp, make_model, mixed_logp, prompt, save_checkpoint, turn
from transformers import PreTrainedModel

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import PublishReport, Version
from asyncopd.seams import Engine
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

OPTIONS = {"float32": {}, "bfloat16": {"quantization": "fp8_per_channel"}}


@dataclasses.dataclass
class Served:
    """An engine, the model of its checkpoint, and the model that it should serve now."""

    engine: Engine
    base: PreTrainedModel
    sync: FileWeightSync
    model: PreTrainedModel

    def __post_init__(self) -> None:
        self.adapters = AdapterSource()
        self.steps = itertools.count(1)

    async def adapt(self, *ends: str) -> PublishReport:
        """Publish another adapter, of the weights whose names end so."""
        version = Version(0, next(self.steps))
        self.adapters.adapter = make_adapter(self.base, version.step, *([ends] if ends else []))
        report = await self.sync.publish(version, self.adapters)
        self.model = adapted_model(self.base, self.adapters.adapter)
        return report

    async def replace(self) -> None:
        """Publish all weights, other ones."""
        version = Version(0, next(self.steps))
        self.model = make_model(100 + version.step, tied=True).to(self.base.dtype)
        await self.sync.publish(version, ModelSource(self.model))

    async def mismatch(self, model: PreTrainedModel) -> float:
        """Return mean |log π − log μ| in nats over some turns, π computed in float32."""
        turns = [turn(prompt(20, seed), max_tokens=40, seed=seed) for seed in range(6)]
        found = await asyncio.gather(*map(self.engine.generate, turns))
        wide = copy.deepcopy(model).float()
        return float(
            np.mean(
                [abs(g.logp_R - learner_logp(wide, t.prompt_ids, g.ids_R)) for t, g in zip(turns, found, strict=True)]
            )
        )

    async def check(self) -> None:
        """Other weights differ by more than a nat, FP8 by a tenth, float32 by its last digits."""
        found = await self.mismatch(self.model)
        assert found < (1e-4 if self.base.dtype == torch.float32 else 0.3), found


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["float32", "bfloat16"])
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory: Path = tmp_path_factory.mktemp("adapted")
    base = make_model(0, tied=True).to(getattr(torch, request.param))
    save_checkpoint(base, directory / "model")
    section = EngineSection(max_context=512, kv_cache_mib=32, options=OPTIONS[request.param])
    engine = await start_engine("student-0", directory / "model", section, dtype=request.param, threads=1, seed=0)
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(directory), 60)
    yield Served(engine, base, sync, base)
    sync.close()
    await engine.close()


async def test_each_adapter_is_merged_into_the_checkpoint_and_not_into_the_last(served: Served) -> None:
    for ends in ((), ("q_proj.weight",), ("layers.1.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight"), ()):
        report = await served.adapt(*ends)
        assert report.bytes < sum(parameter.nbytes for parameter in served.base.parameters()) / 2
        await served.check()
    assert await served.mismatch(served.base) > 0.5


async def test_all_weights_and_adapters_may_follow_each_other(served: Served) -> None:
    for _ in range(2):
        await served.replace()
        await served.check()
        await served.adapt("v_proj.weight")
        await served.check()


async def test_a_turn_goes_on_through_updates_with_exact_versions(served: Served) -> None:
    await served.adapt()
    models = {served.engine.version: served.model}
    request = turn(prompt(9), max_tokens=400)
    generating = asyncio.create_task(served.engine.generate(request))
    for _ in range(2):
        await asyncio.sleep(0.1)
        await served.adapt()
        models[served.engine.version] = served.model
    found = await generating
    versions, starts = np.unique(found.version_R, return_index=True)
    assert [Version.unpack(version) for version in versions] == list(models)[: len(versions)] and len(versions) > 1
    if served.base.dtype == torch.float32:
        spans = [(models[Version.unpack(v)], int(start)) for v, start in zip(versions, starts, strict=True)]
        np.testing.assert_allclose(found.logp_R, mixed_logp(spans, request.prompt_ids, found.ids_R), atol=2e-3)


async def test_an_adapter_of_another_base_is_refused_and_the_old_weights_serve_on(served: Served) -> None:
    await served.adapt()
    served.adapters.adapter = make_adapter(make_model(7, tied=True).to(served.base.dtype), seed=1)
    with pytest.raises(PublishFailed, match=r"prepare of version .* trained on other weights"):
        await served.sync.publish(Version(0, next(served.steps)), served.adapters)
    await served.check()
    await served.adapt()
    await served.check()


async def test_the_mismatch_of_quantised_weights_is_that_of_fp8(served: Served, record_property) -> None:
    await served.replace()
    found = await served.mismatch(served.model)
    record_property("mean_logprob_difference", found)
    if served.base.dtype == torch.float32:
        assert found < 1e-4
    else:
        assert 0.03 < found < 0.3
