"""Two real vLLM servers behind one: the turns of the one that is killed go on at the other, exact per token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio
from support.tiny_models import ModelSource, learner_logp, make_model, prompt, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.fleet import Fleet
from asyncopd.engines.server.engine import ServerEngine
from asyncopd.engines.start import start_engine
from asyncopd.engines.supervisor import Supervisor
from asyncopd.records import DrawSpec, Version
from asyncopd.seams import Engine
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = pytest.mark.integration

SECTION = EngineSection(use="vllm_server", replicas=2, max_context=1024, kv_cache_mib=64, max_replacements=0)
DRAWS = DrawSpec(head=3, iid=2)
TOKENS = 300


@dataclass
class House:
    fleet: Fleet
    engines: dict[str, ServerEngine]
    sync: FileWeightSync
    warnings: list[str]

    def kill(self, name: str) -> None:
        for process in psutil.Process(self.engines[name]._process.pid).children(recursive=True):
            process.kill()


@pytest_asyncio.fixture
async def house(checkpoints: Callable[..., Path], tmp_path: Path) -> AsyncIterator[House]:
    engines: dict[str, ServerEngine] = {}
    warnings: list[str] = []

    async def start(name: str, url: str | None) -> Engine:
        directory = checkpoints(0, tied=True)
        engine = await start_engine(
            name, directory, SECTION, dtype="float32", threads=1, seed=0, draws=DRAWS, logs=tmp_path / "logs"
        )
        assert isinstance(engine, ServerEngine)
        engines[name] = engine
        return engine

    fleet = Fleet("student", {})
    sync = FileWeightSync(lambda: fleet.receivers, OwnedDirectory(tmp_path / "weights"), 60)
    supervisor = Supervisor(fleet, SECTION, start, sync.catch_up, warnings.append)
    try:
        await supervisor.start()
        yield House(fleet, engines, sync, warnings)
    finally:
        await supervisor.close()
        sync.close()


async def test_turns_of_a_killed_server_go_on_at_the_other_with_every_token_exact(house: House) -> None:
    models = {Version(0, 0): make_model(0, tied=True), Version(0, 1): make_model(1, tied=True)}
    asked = [
        msgspec.structs.replace(turn(prompt(20, seed=i), max_tokens=TOKENS, seed=i), draws=DRAWS) for i in range(6)
    ]
    answers = [asyncio.create_task(house.fleet.generate(request)) for request in asked]
    await _sampled(house, 20)
    await house.sync.publish(Version(0, 1), ModelSource(models[Version(0, 1)]))
    await _sampled(house, 60)
    house.kill("student-0")
    for request, answer in zip(asked, answers, strict=True):
        found = await answer
        assert len(found.ids_R) == len(found.logp_R) == len(found.version_R) == TOKENS
        assert (np.diff(found.version_R) >= 0).all()
        for version, model in models.items():
            # Where no part of the context is of another version, engine and learner must agree.
            pure_R = (found.version_R == version.pack()) & (found.mixed_kv_R == 0)
            expected_R = learner_logp(model, request.prompt_ids, found.ids_R)
            np.testing.assert_allclose(found.logp_R[pure_R], expected_R[pure_R], atol=2e-3)
        lost_R = np.zeros(TOKENS, np.uint8) if found.undrawn_R is None else found.undrawn_R
        assert found.draws is not None and found.draws.iid_ids_RM is not None
        assert found.draws.iid_ids_RM.shape == (TOKENS, 2)
        assert np.isfinite(found.draws.iid_logp_RM[lost_R == 0]).all()
    counts = house.fleet.counts
    assert counts["student-0"].moved == 3 and counts["student-1"].moved == 0
    assert counts["student-0"].tokens >= 3 * 20
    assert counts["student-0"].tokens + counts["student-1"].tokens == 6 * TOKENS
    assert list(house.fleet.versions) == ["student-1"]
    (warning,) = house.warnings
    assert warning.startswith("engine student-0 died") and warning.endswith("student-1 is left")


async def _sampled(house: House, tokens: int) -> None:
    """Wait until the first server has streamed that many tokens of a turn."""
    async with asyncio.timeout(60):
        while True:
            answers = house.engines["student-0"]._answers.values()
            if answers and min(len(answer.generation().ids_R) for answer in answers) >= tokens:
                return
            await asyncio.sleep(0.01)
