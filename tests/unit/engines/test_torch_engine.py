"""The reference engine against the learner's numbers, alone and batched, and through weight updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_models import VOCABULARY, ModelSource, learner_logp, make_model, prompt, save_checkpoint, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import DrawSpec, SendOrder, Version, WeightFile
from asyncopd.seams import DeadlineExceeded, Engine, EngineDied
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

Started = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="module")
def model():
    return make_model(0, tied=True)


@pytest.fixture(scope="module")
def started(model, tmp_path_factory: pytest.TempPathFactory) -> Started:
    directory = tmp_path_factory.mktemp("model")
    save_checkpoint(model, directory)

    @asynccontextmanager
    async def start(max_concurrent: int = 64) -> AsyncIterator[Engine]:
        section = EngineSection(use="torch", max_context=256, max_concurrent=max_concurrent)
        engine = await start_engine(
            "reference",
            directory,
            section,
            dtype="float32",
            threads=1,
            seed=0,
            version=Version(0, 3),
            draws=DrawSpec(head=4),
        )
        yield engine
        await engine.close()

    return start


def mixed_turns(count: int = 40):
    return [
        turn(prompt(3 + seed % 17, seed), max_tokens=5 + seed % 9, temperature=0.8, seed=seed, stop_ids=(1,), head=2)
        for seed in range(count)
    ]


async def test_log_probs_are_the_learners_in_any_company(started: Started, model) -> None:
    async with started() as engine:
        turns = mixed_turns()
        for request, found in zip(turns, await asyncio.gather(*map(engine.generate, turns)), strict=True):
            expected_R = learner_logp(model, request.prompt_ids, found.ids_R, 0.8)
            np.testing.assert_allclose(found.logp_R, expected_R, atol=1e-4)
            assert (found.version_R == Version(0, 3).pack()).all()
            assert not found.mixed_kv_R.any()
            assert found.stop_reason == ("stop" if found.ids_R[-1] == 1 else "length")
            assert 1 not in found.ids_R[:-1]
            assert (np.diff(found.draws.head_logp_RK) <= 0).all()


async def test_company_changes_no_token(started: Started) -> None:
    async with started() as crowd, started(max_concurrent=1) as alone:
        batched = await asyncio.gather(*map(crowd.generate, mixed_turns()))
        for request, found in zip(mixed_turns(), batched, strict=True):
            assert found.ids_R.tolist() == (await alone.generate(request)).ids_R.tolist()


async def test_one_at_a_time_is_bitwise_reproducible(started: Started) -> None:
    async with started(max_concurrent=1) as engine:
        assert engine.capabilities.deterministic
        forwards = await asyncio.gather(*map(engine.generate, mixed_turns(10)))
        backwards = await asyncio.gather(*map(engine.generate, mixed_turns(10)[::-1]))
        for one, other in zip(forwards, backwards[::-1], strict=True):
            assert one.ids_R.tobytes() == other.ids_R.tobytes()
            assert one.logp_R.tobytes() == other.logp_R.tobytes()


async def test_a_resumed_turn_samples_what_the_undisturbed_one_did(started: Started) -> None:
    async with started() as engine:
        whole = (await engine.generate(turn(prompt(8), max_tokens=20, seed=5))).ids_R.tolist()
        rest = await engine.generate(turn(prompt(8), max_tokens=20, seed=5, resume_ids=whole[:7]))
        assert rest.ids_R.tolist() == whole[7:]
        ended = await engine.generate(turn(prompt(8), max_tokens=20, resume_ids=whole))
        assert (len(ended.ids_R), ended.stop_reason) == (0, "length")


async def test_tokens_follow_the_distribution(started: Started, model) -> None:
    count = 3000
    async with started() as engine:
        turns = [turn(prompt(4), max_tokens=1, temperature=0.7, seed=seed) for seed in range(count)]
        drawn = [found.ids_R[0] for found in await asyncio.gather(*map(engine.generate, turns))]
    with torch.no_grad():
        probability_V = torch.softmax(model(torch.tensor([prompt(4)])).logits[0, -1] / 0.7, dim=-1).double().numpy()
    expected_V = count * probability_V
    found_V = np.bincount(drawn, minlength=VOCABULARY)
    likely = expected_V >= 5
    chi_square = (((found_V - expected_V) ** 2) / expected_V)[likely].sum()
    degrees = likely.sum()
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


async def test_temperature_zero_takes_the_likeliest(started: Started, model) -> None:
    async with started() as engine:
        found = await engine.generate(turn(prompt(6), temperature=0.0))
    expected = model.generate(torch.tensor([prompt(6)]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    assert found.ids_R.tolist() == expected[0, 6:].tolist()
    np.testing.assert_allclose(found.logp_R, learner_logp(model, prompt(6), found.ids_R), atol=1e-4)


async def test_weights_change_only_between_turns(started: Started, model, tmp_path: Path) -> None:
    async with started() as engine:
        sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(tmp_path), 60)
        early = [asyncio.create_task(engine.generate(turn(prompt(5, seed), max_tokens=80))) for seed in range(4)]
        await asyncio.sleep(0.05)
        newer = make_model(1, tied=True)
        publishing = asyncio.create_task(sync.publish(Version(0, 4), ModelSource(newer)))
        await asyncio.sleep(0)
        late = engine.generate(turn(prompt(5), max_tokens=80, min_version=Version(0, 4)))
        for seed, found in enumerate(await asyncio.gather(*early)):
            assert (found.version_R == Version(0, 3).pack()).all()
            np.testing.assert_allclose(found.logp_R, learner_logp(model, prompt(5, seed), found.ids_R), atol=1e-4)
        found = await late
        assert (found.version_R == Version(0, 4).pack()).all()
        np.testing.assert_allclose(found.logp_R, learner_logp(newer, prompt(5), found.ids_R), atol=1e-4)
        assert (await publishing).pause_seconds > 0
        sync.close()


async def test_weights_of_another_shape_are_refused_and_the_old_ones_serve_on(
    started: Started, model, tmp_path: Path
) -> None:
    class Short(ModelSource):
        async def send(self, order: SendOrder) -> WeightFile:
            self.model.model.norm.weight = torch.nn.Parameter(torch.ones(3))
            return await super().send(order)

    async with started() as engine:
        sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(tmp_path), 60)
        with pytest.raises(PublishFailed, match=r"model\.norm\.weight is not as in the checkpoint"):
            await sync.publish(Version(0, 4), Short(make_model(1, tied=True)))
        found = await engine.generate(turn(prompt(5)))
        assert engine.version == Version(0, 3)
        np.testing.assert_allclose(found.logp_R, learner_logp(model, prompt(5), found.ids_R), atol=1e-4)
        sync.close()


async def test_a_deadline_frees_the_place_of_the_request(started: Started) -> None:
    async with started(max_concurrent=1) as engine:
        with pytest.raises(DeadlineExceeded, match="waited on engine reference past its deadline"):
            await engine.generate(turn(prompt(5), max_tokens=250, within_s=0.05))
        with pytest.raises(DeadlineExceeded, match=r"for version 0\.9; it serves 0\.3"):
            await engine.generate(turn(prompt(5), min_version=Version(0, 9), within_s=0.05))
        assert len((await engine.generate(turn(prompt(5), within_s=10))).ids_R) == 16


async def test_closing_ends_every_wait(started: Started) -> None:
    async with started() as engine:
        waiting = asyncio.create_task(engine.generate(turn(prompt(5), max_tokens=250)))
        await asyncio.sleep(0.05)
    with pytest.raises(EngineDied, match="engine reference was closed"):
        await waiting
