"""The reference engine on an adapter that travels alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.adapters import AdapterSource, adapted_model, make_adapter
from support.tiny_models import learner_logp, make_model, prompt, save_checkpoint, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import Version
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync


@pytest.mark.parametrize("deltas", [False, True])
async def test_each_adapter_is_merged_into_the_checkpoint_and_not_into_the_last(tmp_path: Path, deltas: bool) -> None:
    model = make_model(0, tied=True)
    save_checkpoint(model, tmp_path / "model")
    section = EngineSection(use="torch", max_context=256)
    engine = await start_engine("reference", tmp_path / "model", section, dtype="float32", threads=1, seed=0)
    sync = FileWeightSync(
        lambda: [engine.receiver], OwnedDirectory(tmp_path / "weights"), 60, deltas=deltas, keyframe_every=8
    )
    source = AdapterSource()
    for step in range(1, 4):
        source.adapter = make_adapter(model, seed=step)
        report = await sync.publish(Version(0, step), source)
        assert report.bytes < sum(parameter.nbytes for parameter in model.parameters())
        request = turn(prompt(5), min_version=Version(0, step))
        found = await engine.generate(request)
        expected_R = learner_logp(adapted_model(model, source.adapter), request.prompt_ids, found.ids_R)
        np.testing.assert_allclose(found.logp_R, expected_R, atol=1e-4)
    source.adapter = make_adapter(make_model(1, tied=True), seed=1)
    with pytest.raises(PublishFailed, match="trained on other weights"):
        await sync.publish(Version(0, 4), source)
    assert (await engine.generate(turn(prompt(5)))).version_R[0] == Version(0, 3).pack()
    sync.close()
    await engine.close()
