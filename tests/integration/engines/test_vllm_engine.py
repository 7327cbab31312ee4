"""A real vLLM engine against the learner's numbers, deadlines and death. One engine serves all tests here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
from support.tiny_models import learner_logp, make_model, prompt, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import DrawSpec, Version
from asyncopd.seams import DeadlineExceeded, Engine, EngineDied

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECTION = EngineSection(max_context=512, kv_cache_mib=16)
SEED = 0


def engine_cores() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if "EngineCore" in child.name()}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(checkpoints: Callable[..., Path]) -> AsyncIterator[Engine]:
    before = dict(os.environ)
    engine = await start_engine(
        "student-0",
        checkpoints(SEED, tied=True),
        SECTION,
        dtype="float32",
        threads=1,
        seed=0,
        version=Version(1, 4),
        draws=DrawSpec(head=8),
    )
    assert dict(os.environ) == before, "starting vLLM left its variables behind"
    yield engine
    await engine.close()
    assert engine_cores() == set()


@pytest.fixture(scope="module")
def model():
    return make_model(SEED, tied=True)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_log_probs_are_the_learners(engine: Engine, model, temperature: float) -> None:
    prompts = [prompt(length, length) for length in (1, 7, 127, 128, 129, 300)]
    turns = [
        turn(ids, temperature=temperature, max_tokens=40, seed=seed) for seed, ids in enumerate([*prompts, *prompts])
    ]
    for request, found in zip(turns, await asyncio.gather(*map(engine.generate, turns)), strict=True):
        expected_R = learner_logp(model, request.prompt_ids, found.ids_R, temperature)
        np.testing.assert_allclose(found.logp_R, expected_R, atol=1e-3)
        assert (found.version_R == Version(1, 4).pack()).all()
        assert not found.mixed_kv_R.any()
        assert (len(found.ids_R), found.stop_reason) == (40, "length")


async def test_more_work_than_fits_is_served_exactly(engine: Engine, model) -> None:
    """More prompt tokens than a step takes, more requests than run at once, more keys and values than memory."""
    turns = [turn(prompt(50 + 4 * seed, seed), max_tokens=130, seed=seed) for seed in range(80)]
    for request, found in zip(turns, await asyncio.gather(*map(engine.generate, turns)), strict=True):
        assert len(found.ids_R) == 130
        np.testing.assert_allclose(found.logp_R, learner_logp(model, request.prompt_ids, found.ids_R), atol=1e-3)


async def test_the_head_of_the_behaviour_policy_comes_with_each_token(engine: Engine, model) -> None:
    request = turn(prompt(9), head=5)
    found = await engine.generate(request)
    assert found.draws is not None
    assert found.draws.head_ids_RK.shape == (16, 5)
    assert (np.diff(found.draws.head_logp_RK) <= 0).all()
    for column in range(5):
        ids_R = found.ids_R.copy()
        ids_R[-1] = found.draws.head_ids_RK[-1, column]
        last = learner_logp(model, request.prompt_ids, ids_R)[-1]
        assert found.draws.head_logp_RK[-1, column] == pytest.approx(last, abs=1e-3)
    with pytest.raises(ValueError, match="the engine was started for"):
        await engine.generate(turn(prompt(9), head=9))


async def test_a_turn_ends_with_its_stop_id(engine: Engine) -> None:
    free = await engine.generate(turn(prompt(5), max_tokens=30, seed=3))
    stop = int(free.ids_R[10])
    first = int(np.flatnonzero(free.ids_R == stop)[0])
    stopped = await engine.generate(turn(prompt(5), max_tokens=30, seed=3, stop_ids=(stop,)))
    assert stopped.ids_R.tolist() == free.ids_R[: first + 1].tolist()
    assert stopped.stop_reason == "stop"
    other = await engine.generate(turn(prompt(5), max_tokens=30, seed=4))
    assert other.ids_R.tolist() != free.ids_R.tolist()


async def test_a_turn_resumes_after_the_tokens_it_has(engine: Engine, model) -> None:
    ids = prompt(20)
    start = (await engine.generate(turn(ids, max_tokens=10))).ids_R.tolist()
    rest = await engine.generate(turn(ids, max_tokens=25, resume_ids=start))
    assert len(rest.ids_R) == 15
    np.testing.assert_allclose(rest.logp_R, learner_logp(model, ids + start, rest.ids_R), atol=1e-3)
    ended = await engine.generate(turn(ids, max_tokens=25, resume_ids=start, stop_ids=(start[-1],)))
    assert (len(ended.ids_R), ended.stop_reason) == (0, "stop")


async def test_a_turn_stays_within_the_context(engine: Engine) -> None:
    found = await engine.generate(turn(prompt(500), max_tokens=100))
    assert (len(found.ids_R), found.stop_reason) == (12, "length")
    with pytest.raises(ValueError, match=r"a prompt of 512 tokens leaves no room in engine\.max_context = 512"):
        await engine.generate(turn(prompt(512)))


async def test_a_deadline_ends_the_request_in_the_engine_too(engine: Engine, model) -> None:
    with pytest.raises(DeadlineExceeded, match=r"request \d+ of trajectory \d+ waited on engine student-0 past"):
        await engine.generate(turn(prompt(5), max_tokens=500, within_s=0.1))
    assert engine._llm.get_num_unfinished_requests() == 0
    request = turn(prompt(6))
    found = await engine.generate(request)
    np.testing.assert_allclose(found.logp_R, learner_logp(model, request.prompt_ids, found.ids_R), atol=1e-3)


async def test_a_version_not_served_is_waited_for_until_the_deadline(engine: Engine) -> None:
    with pytest.raises(DeadlineExceeded, match=r"waited on engine student-0 for version 1\.5; it serves 1\.4"):
        await engine.generate(turn(prompt(5), min_version=Version(1, 5), within_s=0.1))


async def loop_lag(work: Awaitable[object]) -> float:
    """Return the 99th percentile of what sleeps of 2 ms took too long, in seconds, during `work`."""
    loop = asyncio.get_running_loop()
    lags: list[float] = []

    async def measure() -> None:
        while True:
            start = loop.time()
            await asyncio.sleep(0.002)
            lags.append(loop.time() - start - 0.002)

    measuring = asyncio.create_task(measure())
    await work
    measuring.cancel()
    return float(np.quantile(lags, 0.99))


async def test_the_event_loop_stays_free_at_64_concurrent_requests(engine: Engine) -> None:
    """The least of three, because a busy machine adds to the lag and nothing takes from it."""

    def work() -> Awaitable[object]:
        turns = [turn(prompt(50, seed), max_tokens=150, seed=seed) for seed in range(64)]
        return asyncio.gather(*map(engine.generate, turns))

    assert min([await loop_lag(work()) for _ in range(3)]) < 0.05


async def test_the_death_of_the_core_ends_every_wait(engine: Engine) -> None:
    """The last test of this file: it kills the engine."""
    waits = [turn(prompt(5), max_tokens=500), turn(prompt(5), min_version=Version(9, 9))]
    waiting = [asyncio.create_task(engine.generate(request)) for request in waits]
    updating = asyncio.create_task(engine.receiver.freeze())
    await asyncio.sleep(0.05)
    (core,) = engine_cores()
    os.kill(core, signal.SIGKILL)
    for wait in waiting:
        with pytest.raises(EngineDied, match="engine student-0 died"):
            await asyncio.wait_for(wait, 20)
    await asyncio.wait({updating})
    with pytest.raises(EngineDied, match="engine student-0 died"):
        await engine.receiver.thaw()
    with pytest.raises(EngineDied, match="engine student-0 died"):
        await engine.generate(turn(prompt(5)))


async def test_a_start_that_takes_too_long_leaves_no_process(checkpoints: Callable[..., Path]) -> None:
    section = SECTION.model_copy(update={"start_timeout_s": 2.5})
    with pytest.raises(DeadlineExceeded, match=r"engine student-1 did not start within 2\.5 s"):
        await start_engine("student-1", checkpoints(SEED, tied=True), section, dtype="float32", threads=1, seed=0)
    gone = [psutil.Process(pid) for pid in engine_cores()]
    psutil.wait_procs(gone, timeout=10)
    assert engine_cores() == set()
