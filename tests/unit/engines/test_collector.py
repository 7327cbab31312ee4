"""Collecting draws from a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from asyncopd.engines.draws import Collector, Order, completed, extra_args, order_of, worker_spec
from asyncopd.records import Draws, DrawSpec, GenerateRequest, Sampling, Version, encode


class Worker:
    """Answers with what `held` says, one call after another; `calls` are the keys of each."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.held: dict[str, Draws] = {}
        self.fails: list[Exception] = []
        self._busy = 0

    async def fetch(self, keys: Sequence[str]) -> bytes:
        self.calls.append(list(keys))
        self._busy += 1
        assert self._busy == 1, "two calls were under way at once"
        await asyncio.sleep(0.01)
        self._busy -= 1
        if self.fails:
            raise self.fails.pop()
        return encode({key: self.held.pop(key) for key in keys if key in self.held})


def draws_of(rows: int, value: int = 0) -> Draws:
    ids_RM = np.full((rows, 2), value, np.int32)
    return Draws(iid_ids_RM=ids_RM, iid_logp_RM=-ids_RM.astype(np.float32))


async def test_one_call_is_under_way_and_takes_along_all_asked_for_meanwhile():
    worker = Worker()
    worker.held = {str(value): draws_of(3, value) for value in range(9)}
    collector = Collector(worker.fetch)
    first = asyncio.create_task(collector.take("0"))
    await asyncio.sleep(0.001)
    rest = [asyncio.create_task(collector.take(str(value))) for value in range(1, 9)]
    for value, found in enumerate(await asyncio.gather(first, *rest)):
        assert found.iid_ids_RM.tolist() == [[value, value]] * 3
    assert worker.calls == [["0"], [str(value) for value in range(1, 9)]]
    assert await collector.take("0") is None


async def test_a_request_given_up_is_forgotten_by_the_worker():
    worker = Worker()
    worker.held = {"a": draws_of(1), "b": draws_of(1)}
    collector = Collector(worker.fetch)
    collector.discard("a")
    waiting = asyncio.create_task(collector.take("b"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0.03)
    assert worker.held == {}


async def test_a_call_that_fails_fails_those_who_wait_for_it_and_no_other():
    worker = Worker()
    worker.held = {"b": draws_of(1)}
    worker.fails = [ConnectionError("gone")]
    collector = Collector(worker.fetch)
    failing = asyncio.create_task(collector.take("a"))
    await asyncio.sleep(0.001)
    going_on = asyncio.create_task(collector.take("b"))
    with pytest.raises(ConnectionError, match="gone"):
        await failing
    assert (await going_on).count == 1


async def test_closing_ends_every_wait():
    collector = Collector(Worker().fetch)
    waiting = asyncio.create_task(collector.take("a"))
    await asyncio.sleep(0.001)
    collector.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def request(spec: DrawSpec, resume_ids: list[int]) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        trajectory_id="t",
        prompt_ids=[1],
        resume_ids=resume_ids,
        sampling=Sampling(temperature=1.0, max_tokens=9, seed=2**63 - 1, stop_ids=()),
        min_version=Version(0, 0),
        deadline=0.0,
        draws=spec,
    )


def test_an_order_survives_among_the_extra_arguments():
    wanted = request(DrawSpec(head=4, tail=3), [5, 6])
    assert order_of(extra_args(wanted, "k")) == Order("k", 2**63 - 1, 2, 4, 3, 0)
    assert order_of(None) is None and order_of({"other": 1}) is None


def test_vllm_returns_a_head_that_no_tail_hangs_on():
    assert worker_spec(DrawSpec(head=4)) == DrawSpec()
    assert worker_spec(DrawSpec(head=4, iid=2)) == DrawSpec(iid=2)
    assert worker_spec(DrawSpec(head=4, tail=2)) == DrawSpec(head=4, tail=2)


def test_a_row_of_a_token_past_the_end_is_left_out():
    draws, undrawn_R = completed(draws_of(4, 7), DrawSpec(iid=2), 3)
    assert undrawn_R is None and draws.count == 3


@pytest.mark.parametrize("kept", [None, 2])
def test_tokens_whose_draws_the_worker_forgot_are_named(kept):
    draws, undrawn_R = completed(None if kept is None else draws_of(kept, 7), DrawSpec(iid=2), 3)
    assert undrawn_R.tolist() == [0, 0, 1] if kept else [1, 1, 1]
    assert draws.iid_ids_RM.tolist() == [[7, 7]] * (kept or 0) + [[0, 0]] * (3 - (kept or 0))
    assert np.isneginf(draws.iid_logp_RM[-1]).all()


def test_a_head_from_vllm_joins_what_the_worker_kept():
    heads = Draws(head_ids_RK=np.ones((3, 4), np.int32), head_logp_RK=np.zeros((3, 4), np.float32))
    draws, _ = completed(draws_of(3), DrawSpec(head=4, iid=2), 3, heads)
    assert draws.head_ids_RK.shape == (3, 4) and draws.iid_ids_RM.shape == (3, 2)
