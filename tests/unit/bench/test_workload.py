"""What is measured is the same for whoever serves it."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from asyncopd.bench.workload import Workload, random_scores, run_all, trajectory_of
from asyncopd.records import DrawSpec, Generation, Version
from asyncopd.seams import EngineDied


@pytest.fixture
def workload():
    return Workload(prompts=[[5, 6], [7], [8, 9, 10]], turn_tokens=4, temperature=0.7, concurrent=2)


async def test_requests_are_equal_but_for_their_ids_and_draws(workload):
    def anonymous(request):
        return msgspec.structs.replace(request, request_id="", trajectory_id="", deadline=0.0, draws=DrawSpec())

    first, second = workload.requests(), workload.requests(DrawSpec(head=3))
    assert [anonymous(request) for request in first] == [anonymous(request) for request in second]
    assert len({request.request_id for request in (*first, *second)}) == 6
    assert {request.draws.head for request in second} == {3}


async def test_no_more_are_served_at_once_than_asked_for_and_all_are(workload):
    alive, most, served = 0, 0, []

    async def serve(request):
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await asyncio.sleep(0.01)
        alive -= 1
        served.append(request.request_id)
        return 4

    requests = workload.requests()
    loop = asyncio.get_running_loop()
    began = loop.time()
    rate = await run_all(requests, serve, concurrent=2)
    assert most == 2
    assert sorted(served) == sorted(request.request_id for request in requests)
    assert 12 / (loop.time() - began) <= rate <= 12 / 0.02  # 4 tokens each of three, two one after the other


async def test_a_server_that_dies_says_so_itself(workload):
    async def serve(request):
        raise EngineDied("gone")

    with pytest.raises(EngineDied, match="gone"):
        await run_all(workload.requests(), serve, concurrent=2)


async def test_a_turn_becomes_a_trajectory_that_can_be_learned_from(workload):
    request = workload.requests()[0]
    generation = Generation(
        ids_R=np.array([1, 2, 3, 4], np.int32),
        logp_R=np.full(4, -0.5, np.float32),
        version_R=np.full(4, Version(0, 0).pack()),
        mixed_kv_R=np.zeros(4, np.uint8),
        stop_reason="length",
    )
    trajectory = trajectory_of(3, request, generation)
    (segment,) = trajectory.segments
    assert segment.ids_T.tolist() == [5, 6, 1, 2, 3, 4]
    assert segment.trained_rows.tolist() == [2, 3, 4, 5]
    (scores,) = random_scores(trajectory, width=8, vocabulary=50)
    assert scores.ids_RK.shape == (4, 8)
    assert all(len(set(ids_K)) == 8 for ids_K in scores.ids_RK.tolist())
    assert scores.ids_RK.min() >= 0 and scores.ids_RK.max() < 50
    assert (np.diff(scores.logp_RK, axis=1) <= 0).all()
    assert (np.exp(scores.logp_RK).sum(axis=1) <= 1 + 1e-6).all()
