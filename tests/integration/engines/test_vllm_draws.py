"""Draws of vLLM: exact, aligned with their tokens whatever the batch does, and gone when they were collected.

Shapes: R generated tokens, V vocabulary, M draws.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
import torch
from prometheus_client import REGISTRY
from support.tiny_models import VOCABULARY, ModelSource, make_model, prompt, save_checkpoint, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.draws import unpacked
from asyncopd.engines.start import start_engine
from asyncopd.records import Draws, DrawSpec, GenerateRequest, Generation, Version
from asyncopd.seams import DeadlineExceeded
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MOST = DrawSpec(head=12, tail=16, iid=16)
HEAD_TAIL = DrawSpec(head=4, tail=3)
IID = DrawSpec(iid=5)


@pytest.fixture(scope="module")
def model():
    return make_model(0, tied=True)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(model, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    directory = tmp_path_factory.mktemp("model")
    save_checkpoint(model, directory)
    # A dozen blocks of 128 tokens: a few dozen requests cannot all stay.
    options = {"num_gpu_blocks_override": 12, "disable_log_stats": False}
    section = EngineSection(max_context=256, max_concurrent=16, kv_cache_mib=16, options=options)
    started = await start_engine("student-0", directory, section, dtype="float32", threads=1, seed=0, draws=MOST)
    yield started
    await started.close()


def asking(spec: DrawSpec, prompt_ids: list[int], **sampling: Any) -> GenerateRequest:
    return msgspec.structs.replace(turn(prompt_ids, **sampling), draws=spec)


@torch.no_grad()
def exact_logp(model, request: GenerateRequest, ids_R: np.ndarray) -> np.ndarray:
    """Return log μ of every token before each of `ids_R`, float64 [R, V]."""
    context = request.prompt_ids + request.resume_ids
    logits_TV = model(torch.tensor([[*context, *ids_R.tolist()]])).logits[0].double()
    return torch.log_softmax(logits_TV / request.sampling.temperature, -1)[len(context) - 1 : -1].numpy()


def check(model, request: GenerateRequest, found: Generation) -> None:
    """Check shapes and log μ of all draws; where a row belonged to another token they would be far off."""
    logp_RV = exact_logp(model, request, found.ids_R)
    draws, spec = found.draws, request.draws
    assert draws is not None and found.undrawn_R is None
    kinds = (
        (spec.head, draws.head_ids_RK, draws.head_logp_RK),
        (spec.tail, draws.tail_ids_RM, draws.tail_logp_RM),
        (spec.iid, draws.iid_ids_RM, draws.iid_logp_RM),
    )
    for width, ids_RM, logp_RM in kinds:
        if not width:
            assert ids_RM is None and logp_RM is None
            continue
        assert ids_RM.shape == logp_RM.shape == (len(found.ids_R), width)
        np.testing.assert_allclose(logp_RM, np.take_along_axis(logp_RV, ids_RM, axis=1), atol=1e-5)
    if spec.head:
        assert (np.diff(draws.head_logp_RK) <= 0).all()
        least_R = np.sort(logp_RV, axis=1)[:, -spec.head]
        assert (np.take_along_axis(logp_RV, draws.head_ids_RK, axis=1) >= least_R[:, None] - 1e-5).all()
    if spec.tail and spec.head:
        assert not (draws.tail_ids_RM[:, :, None] == draws.head_ids_RK[:, None]).any()


async def kept(engine, requests: list[GenerateRequest]) -> dict[str, Draws]:
    """Return what the worker still keeps of `requests`."""
    await asyncio.sleep(0.2)  # requests that are given up are forgotten in the background
    keys = [f"{request.request_id}#{number}" for request in requests for number in range(next(engine._numbers))]
    (answer,) = await engine._llm.collective_rpc("take_draws", args=(keys,))
    return unpacked(answer)


@pytest.mark.parametrize("spec", [HEAD_TAIL, IID, MOST, DrawSpec(head=4, iid=2), DrawSpec(tail=3), DrawSpec(head=12)])
async def test_log_probs_of_all_draws_are_those_of_the_policy_that_samples(engine, model, spec) -> None:
    for temperature in (1.0, 0.6):
        request = asking(spec, prompt(7), max_tokens=24, temperature=temperature)
        check(model, request, await engine.generate(request))


async def test_draws_follow_the_policy(engine, model) -> None:
    requests = [asking(MOST, prompt(4), max_tokens=1, seed=seed, temperature=0.9) for seed in range(250)]
    found = await asyncio.gather(*map(engine.generate, requests))
    assert all(generation.undrawn_R is None for generation in found)
    probability_V = np.exp(exact_logp(model, requests[0], found[0].ids_R)[0])
    tail_V = probability_V.copy()
    tail_V[found[0].draws.head_ids_RK[0]] = 0
    for drawn, expected_V in (
        (np.concatenate([g.draws.iid_ids_RM for g in found]), probability_V),
        (np.concatenate([g.draws.tail_ids_RM for g in found]), tail_V / tail_V.sum()),
    ):
        expected_V = drawn.size * expected_V
        likely_V = expected_V >= 5
        found_V = np.bincount(drawn.ravel(), minlength=VOCABULARY)
        chi_square = ((found_V - expected_V)[likely_V] ** 2 / expected_V[likely_V]).sum()
        assert abs(chi_square - likely_V.sum()) < 4 * np.sqrt(2 * likely_V.sum())


async def test_rows_stay_with_their_tokens_while_requests_join_leave_and_are_preempted(engine, model) -> None:
    def preempted() -> float:
        return REGISTRY.get_sample_value("vllm:num_preemptions_total", {"model_name": name, "engine": "0"}) or 0.0

    name = engine._llm.model_config.served_model_name
    before = preempted()
    specs = [HEAD_TAIL, IID, DrawSpec(), DrawSpec(head=2), MOST]
    requests = [
        asking(specs[seed % 5], prompt(30 + 5 * (seed % 14), seed), max_tokens=40 + 3 * (seed % 35), seed=seed)
        for seed in range(40)
    ]

    async def joining(number: int, request: GenerateRequest) -> Generation:
        await asyncio.sleep(0.02 * (number % 10))
        return await engine.generate(request)

    found = await asyncio.gather(*(joining(number, request) for number, request in enumerate(requests)))
    assert preempted() > before
    for request, generation in zip(requests, found, strict=True):
        if request.draws.width:
            check(model, request, generation)
        else:
            assert generation.draws is None
    assert await kept(engine, requests) == {}


async def test_draws_depend_on_seed_and_position_and_not_on_the_batch(engine) -> None:
    request = asking(MOST, prompt(9), max_tokens=20, seed=5)
    alone = await engine.generate(request)
    neighbours = [asking(IID, prompt(5, seed), max_tokens=30, seed=seed) for seed in range(8)]
    again, *_ = await asyncio.gather(*(engine.generate(r) for r in (msgspec.structs.replace(request), *neighbours)))
    other = await engine.generate(asking(MOST, prompt(9), max_tokens=20, seed=6))
    assert again.ids_R.tolist() == alone.ids_R.tolist()
    np.testing.assert_array_equal(again.draws.tail_ids_RM, alone.draws.tail_ids_RM)
    np.testing.assert_array_equal(again.draws.iid_ids_RM, alone.draws.iid_ids_RM)
    assert (other.draws.iid_ids_RM[0] != alone.draws.iid_ids_RM[0]).any()


async def test_a_resumed_turn_goes_on_with_the_draws_of_its_later_positions(engine, model) -> None:
    whole = await engine.generate(asking(MOST, prompt(9), max_tokens=20, seed=5))
    resumed = asking(MOST, prompt(9), max_tokens=20, seed=5, resume_ids=whole.ids_R[:8].tolist())
    rest = await engine.generate(resumed)
    check(model, resumed, rest)
    # The token after the resumed ones has the same context and position, so the same draws.
    np.testing.assert_array_equal(rest.draws.iid_ids_RM[0], whole.draws.iid_ids_RM[8])
    np.testing.assert_array_equal(rest.draws.tail_ids_RM[0], whole.draws.tail_ids_RM[8])


async def test_requests_given_up_leave_nothing_behind(engine) -> None:
    requests = [asking(MOST, prompt(5, seed), max_tokens=250, within_s=0.3) for seed in range(24)]
    given_up = [asyncio.create_task(engine.generate(request)) for request in requests]
    await asyncio.sleep(0.15)
    for task in given_up[::2]:
        task.cancel()
    ends = await asyncio.gather(*given_up, return_exceptions=True)
    assert {type(end) for end in ends} <= {asyncio.CancelledError, DeadlineExceeded, Generation}
    assert sum(isinstance(end, asyncio.CancelledError | DeadlineExceeded) for end in ends) >= 12
    assert await kept(engine, requests) == {}


async def test_greedy_neighbours_change_nothing_and_have_a_head_but_no_draws(engine, model) -> None:
    greedy = [asking(DrawSpec(head=3), prompt(6, seed), temperature=0.0, max_tokens=30) for seed in range(4)]
    drawing = asking(MOST, prompt(8), max_tokens=30)
    drawn, *likeliest = await asyncio.gather(*map(engine.generate, (drawing, *greedy)))
    check(model, drawing, drawn)
    assert all((g.draws.head_ids_RK[:, 0] == g.ids_R).all() for g in likeliest)
    with pytest.raises(ValueError, match="a temperature above 0"):
        await engine.generate(asking(IID, prompt(6), temperature=0.0))


@pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 6}, {"top_p": 0.8, "top_k": 9}])
async def test_log_probs_of_a_cut_policy_are_its_own_and_draws_of_it_are_refused(engine, model, cut) -> None:
    request = turn(prompt(7), max_tokens=40)
    request = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, **cut))
    found = await engine.generate(request)
    for logp_V, token, logp in zip(exact_logp(model, request, found.ids_R), found.ids_R, found.logp_R, strict=True):
        falling = np.argsort(-logp_V)[: cut.get("top_k")]
        share = np.exp(logp_V[falling]) / np.exp(logp_V[falling]).sum()
        kept_share = share[np.cumsum(share) - share < cut.get("top_p", 1.0)]
        assert token in falling[: len(kept_share)]
        assert logp == pytest.approx(np.log(share[falling == token].item() / kept_share.sum()), abs=1e-4)
    with pytest.raises(ValueError, match="neither top_p nor top_k"):
        await engine.generate(msgspec.structs.replace(request, draws=IID))


async def test_draws_are_of_the_weights_that_sample_their_token(engine, model, tmp_path: Path) -> None:
    newer = make_model(1, tied=True)
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(tmp_path), 60)
    request = asking(MOST, prompt(10), max_tokens=200)
    waiting = asyncio.create_task(engine.generate(request))
    await asyncio.sleep(0.15)
    await sync.publish(Version(0, 1), ModelSource(newer))
    found = await waiting
    first = int((found.version_R == Version(0, 0).pack()).sum())
    assert 0 < first < 200
    older_RV = exact_logp(model, request, found.ids_R)[:first]
    np.testing.assert_allclose(
        found.draws.iid_logp_RM[:first], np.take_along_axis(older_RV, found.draws.iid_ids_RM[:first], 1), atol=1e-5
    )
    # Over keys and values of both, so that only the sampled token's log-prob says what the distribution was.
    same = found.draws.iid_ids_RM == found.ids_R[:, None]
    logp_RM = np.broadcast_to(found.logp_R[:, None], same.shape)
    assert same[first:].any()
    np.testing.assert_allclose(found.draws.iid_logp_RM[same], logp_RM[same], atol=1e-5)
    fresh = asking(MOST, prompt(10), max_tokens=10, min_version=Version(0, 1))
    check(newer, fresh, await engine.generate(fresh))
    sync.close()


async def test_progress_tells_how_far_each_request_is(engine) -> None:
    request = turn(prompt(5), max_tokens=250)
    waiting = asyncio.create_task(engine.generate(request))
    await asyncio.sleep(0.2)
    (progress,) = await engine._llm.collective_rpc("progress")
    (key,) = (key for key in progress if key.startswith(f"{request.request_id}#"))
    assert 0 < progress[key] < 250
    assert len((await waiting).ids_R) == 250
