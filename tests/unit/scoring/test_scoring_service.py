"""The invariants of the scoring service, with faults put in by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest

from asyncopd.config.scoring import ScoringSection
from asyncopd.errors import UserError
from asyncopd.records import ScoreRequest, Scores, Support, SupportKind
from asyncopd.scoring.cache.codec import decode_scores, encode_scores
from asyncopd.scoring.cache.errors import StoreUnavailable
from asyncopd.scoring.cache.keys import score_key
from asyncopd.scoring.cache.memory import MemoryStore
from asyncopd.scoring.cache.packing import STEP_8
from asyncopd.scoring.service import ScoringService
from asyncopd.seams import ScoreStore

TOPK = Support(kind=SupportKind.TEACHER_TOPK, width=4)
A, B, C, D = [1, 2, 3, 4], [1, 2, 5, 6, 7], [1, 2, 8], [9, 9, 9, 9]


@asynccontextmanager
async def serving(
    teacher: object, store: ScoreStore | None = None, *, support: Support = TOPK, **options: object
) -> AsyncIterator[ScoringService]:
    service = ScoringService(teacher, store, ScoringSection(**options), support)
    try:
        yield service
    finally:
        async with asyncio.timeout(5):
            await service.close()


def same(one: Scores | None, other: Scores | None) -> bool:
    assert one is not None and other is not None
    return np.array_equal(one.ids_RK, other.ids_RK) and one.logp_RK.tobytes() == other.logp_RK.tobytes()


async def settled() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def key_of(teacher: object, request: ScoreRequest) -> bytes:
    return score_key("asyncopd", teacher.identity, request)


async def test_a_hit_gives_the_bits_of_the_miss(scripted_teacher, trajectory, answer_of, request_of) -> None:
    teacher, store = scripted_teacher(), MemoryStore(10**6)
    async with serving(teacher, store) as service:
        missed = await service.score(trajectory(A, B), 0)
        await settled()
        hit = await service.score(trajectory(A, B), 0)
    assert len(teacher.calls) == 1
    assert all(map(same, missed, hit))
    assert all(map(same, missed, [answer_of(request_of(A)), answer_of(request_of(B))]))
    assert (service.stats.hits, service.stats.misses) == (2, 2)
    assert service.stats.bytes == 2 * sum(len(encode_scores(scores)) for scores in missed)
    assert service.stats.teacher_tokens == len(A) + len(B)


async def test_eight_bits_give_hit_and_miss_the_same_bits_within_their_error(
    scripted_teacher, trajectory, answer_of, request_of
) -> None:
    teacher, store = scripted_teacher(), MemoryStore(10**6)
    async with serving(teacher, store, cache_bits=8) as service:
        missed = await service.score(trajectory(A), 0)
        await settled()
        hit = await service.score(trajectory(A), 0)
    assert len(teacher.calls) == 1 and same(missed[0], hit[0])
    exact = answer_of(request_of(A)).logp_RK
    assert 0 < np.abs(hit[0].logp_RK - exact).max() <= STEP_8 / 2


async def test_a_segment_in_flight_is_asked_for_once(scripted_teacher, trajectory) -> None:
    teacher = scripted_teacher()
    async with serving(teacher, MemoryStore(10**6)) as service:
        first, second, third = await asyncio.gather(
            service.score(trajectory(A), 0), service.score(trajectory(A), 5), service.score(trajectory(A, A), 0)
        )
        assert same(first[0], second[0]) and same(first[0], third[0]) and same(first[0], third[1])
    assert teacher.calls == [[A]]
    assert service.stats.shared == 3


async def test_the_most_urgent_segments_go_first_and_cached_ones_wait_for_none(scripted_teacher, trajectory) -> None:
    teacher, store = scripted_teacher(), MemoryStore(10**6)
    async with serving(teacher, store, max_batch=1) as service:
        await service.score(trajectory(D), 0)
        await settled()
        teacher.gate.clear()
        waiting = [
            asyncio.create_task(service.score(trajectory(ids), priority))
            for ids, priority in (([7, 7, 7], 9), (A, 3), (B, 1), (C, 2))
        ]
        await settled()
        await asyncio.wait_for(service.score(trajectory(D), 99), 1)
        # Someone else needs the least urgent one at once.
        waiting.append(asyncio.create_task(service.score(trajectory(A), 0)))
        await settled()
        teacher.gate.set()
        await asyncio.gather(*waiting)
    assert teacher.calls == [[D], [B], [A], [C], [[7, 7, 7]]]


async def test_what_waits_is_batched_up_to_the_limit(scripted_teacher, trajectory) -> None:
    teacher = scripted_teacher()
    teacher.gate.clear()
    async with serving(teacher, max_batch=3) as service:
        waiting = [asyncio.create_task(service.score(trajectory([1, 2, number]), 0)) for number in range(8)]
        await settled()
        teacher.gate.set()
        await asyncio.gather(*waiting)
    assert [len(call) for call in teacher.calls] == [3, 3, 2]


@pytest.mark.parametrize("poison", [b"", b"garbage", "truncated", "altered", "of another segment"])
async def test_a_poisoned_value_is_scored_again(poison, scripted_teacher, trajectory, answer_of, request_of) -> None:
    teacher, store = scripted_teacher(), MemoryStore(10**6)
    value = encode_scores(answer_of(request_of(B if poison == "of another segment" else A)))
    if poison == "truncated":
        value = value[:-1]
    elif poison == "altered":
        value = value[:40] + bytes([value[40] ^ 1]) + value[41:]
    elif isinstance(poison, bytes):
        value = poison
    await store.put({key_of(teacher, request_of(A)): value})
    async with serving(teacher, store) as service:
        (scores,) = await service.score(trajectory(A), 0)
        await settled()
        (healed,) = await store.get([key_of(teacher, request_of(A))])
    assert same(scores, answer_of(request_of(A))) and same(scores, decode_scores(healed, request_of(A)))
    assert service.stats.corrupt == 1


async def test_a_wider_value_serves_and_a_narrower_one_does_not(
    scripted_teacher, trajectory, answer_of, request_of
) -> None:
    wide = Support(kind=SupportKind.TEACHER_TOPK, width=9)
    teacher, store = scripted_teacher(), MemoryStore(10**6)
    async with serving(teacher, store, support=TOPK) as service:
        await service.score(trajectory(A), 0)
    async with serving(teacher, store, support=wide) as service:
        (widened,) = await service.score(trajectory(A), 0)
        await settled()
        assert len(teacher.calls) == 2 and service.stats.corrupt == 0
    async with serving(teacher, store, support=TOPK) as service:
        (narrowed,) = await service.score(trajectory(A), 0)
    assert len(teacher.calls) == 2
    assert same(narrowed, widened.narrowed(TOPK))


def nan_for(ids: Sequence[int], answer_of, times: int):
    """Return mischief: the answer about `ids` holds a NaN in the first `times` calls that ask for it."""
    asked = 0

    def mischief(_: int, requests: Sequence[ScoreRequest]) -> list[Scores]:
        nonlocal asked
        answers = []
        for request in requests:
            scores = answer_of(request)
            if request.context_ids_C.tolist() == list(ids):
                asked += 1
                if asked <= times:
                    scores = msgspec.structs.replace(scores, logp_RK=scores.logp_RK * np.float32("nan"))
            answers.append(scores)
        return answers

    return mischief


async def test_a_wrong_answer_is_asked_again(scripted_teacher, trajectory, answer_of, request_of) -> None:
    teacher = scripted_teacher(nan_for(A, answer_of, times=2))
    async with serving(teacher, MemoryStore(10**6), max_retries=2) as service:
        scores = await service.score(trajectory(B, A), 0)
    assert same(scores[1], answer_of(request_of(A)))
    assert teacher.calls == [[B, A], [A], [A]]
    assert (service.stats.retries, service.stats.unscored) == (2, 0)


async def test_wrong_answers_end_as_unscored_and_never_reach_the_store(
    scripted_teacher, trajectory, answer_of, request_of
) -> None:
    teacher, store = scripted_teacher(nan_for(A, answer_of, times=99)), MemoryStore(10**6)
    async with serving(teacher, store, max_retries=1) as service:
        scores = await service.score(trajectory(A, B), 0)
        await settled()
        stored = await store.get([key_of(teacher, request_of(ids)) for ids in (A, B)])
    assert scores[0] is None and same(scores[1], answer_of(request_of(B)))
    assert stored[0] is None and same(decode_scores(stored[1], request_of(B)), scores[1])
    assert service.stats.unscored == 1


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_wrong_number_of_answers_is_asked_again(
    count, scripted_teacher, trajectory, answer_of, request_of
) -> None:
    def mischief(call: int, requests: Sequence[ScoreRequest]) -> list[Scores] | None:
        return [answer_of(requests[0])] * count if call == 1 else None

    async with serving(scripted_teacher(mischief)) as service:
        scores = await service.score(trajectory(A, B), 0)
    assert all(map(same, scores, [answer_of(request_of(A)), answer_of(request_of(B))]))


async def test_a_segment_that_breaks_the_teacher_fails_alone(
    scripted_teacher, trajectory, answer_of, request_of
) -> None:
    def mischief(_: int, requests: Sequence[ScoreRequest]) -> None:
        if any(request.context_ids_C.tolist() == A for request in requests):
            raise ConnectionError("gone")

    teacher = scripted_teacher(mischief)
    async with serving(teacher, max_retries=1) as service:
        scores = await service.score(trajectory(A, B, C), 0)
    assert scores[0] is None
    assert all(map(same, scores[1:], [answer_of(request_of(B)), answer_of(request_of(C))]))
    assert teacher.calls == [[A, B, C], [A], [B], [C]]


async def test_a_hanging_teacher_is_cancelled_at_the_deadline(scripted_teacher, trajectory) -> None:
    teacher = scripted_teacher()
    teacher.gate.clear()
    async with serving(teacher, timeout_s=0.02, max_retries=1) as service:
        assert await asyncio.wait_for(service.score(trajectory(A), 0), 2) == [None]
        assert teacher.alive == 0
        teacher.gate.set()
        assert (await service.score(trajectory(A), 0))[0] is not None
    assert len(teacher.calls) == 3


async def test_what_no_retry_heals_reaches_every_caller(scripted_teacher, trajectory) -> None:
    def mischief(call: int, _: Sequence[ScoreRequest]) -> None:
        if call == 1:
            raise UserError("teacher.model", "reads 4 tokens", "choose another")

    async with serving(scripted_teacher(mischief)) as service:
        outcomes = await asyncio.gather(
            service.score(trajectory(B), 0), service.score(trajectory(B, A), 0), return_exceptions=True
        )
        assert all(isinstance(outcome, UserError) for outcome in outcomes)
        assert (await service.score(trajectory(B), 0))[0] is not None


async def test_a_store_that_fails_costs_misses_only(scripted_teacher, trajectory) -> None:
    class Down(MemoryStore):
        async def get(self, keys):
            raise StoreUnavailable("gone")

        async def put(self, items):
            raise StoreUnavailable("gone")

    teacher = scripted_teacher()
    async with serving(teacher, Down(1)) as service:
        first = await service.score(trajectory(A), 0)
        await settled()
        second = await service.score(trajectory(A), 0)
    assert same(first[0], second[0])
    assert len(teacher.calls) == 2
    assert service.stats.store_errors >= 1


async def test_a_bug_in_a_store_reaches_the_callers_and_nobody_hangs(scripted_teacher, trajectory) -> None:
    class Broken(MemoryStore):
        async def get(self, keys):
            raise TypeError("a bug")

    async with serving(scripted_teacher(), Broken(1)) as service:
        for _ in range(2):
            with pytest.raises(TypeError, match="a bug"):
                await asyncio.wait_for(service.score(trajectory(A), 0), 1)


async def test_a_caller_that_gives_up_takes_nobody_along(scripted_teacher, trajectory) -> None:
    teacher = scripted_teacher()
    teacher.gate.clear()
    async with serving(teacher) as service:
        one, other = (asyncio.create_task(service.score(trajectory(A), 0)) for _ in range(2))
        await settled()
        one.cancel()
        await settled()
        teacher.gate.set()
        assert (await asyncio.wait_for(other, 1))[0] is not None
    assert one.cancelled()


async def test_a_segment_without_trained_rows_costs_nothing(scripted_teacher, trajectory) -> None:
    teacher = scripted_teacher()
    async with serving(teacher) as service:
        (scores,) = await service.score(trajectory([1, 2]), 0)
    assert scores.ids_RK.shape == scores.logp_RK.shape == (0, 4)
    assert teacher.calls == []


async def test_closing_cancels_who_waits_and_stores_what_was_answered(scripted_teacher, trajectory, request_of) -> None:
    class Slow(MemoryStore):
        async def put(self, items):
            await asyncio.sleep(0.05)
            await super().put(items)

    teacher, store = scripted_teacher(), Slow(10**6)
    service = ScoringService(teacher, store, ScoringSection(), TOPK)
    await service.score(trajectory(A), 0)
    teacher.gate.clear()
    waiting = asyncio.create_task(service.score(trajectory(B), 0))
    await settled()
    await service.close()
    assert teacher.alive == 0
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await store.get([key_of(teacher, request_of(A))]))[0] is not None


async def test_a_support_the_teacher_lacks_is_refused_with_what_it_offers(scripted_teacher) -> None:
    with pytest.raises(UserError, match=r"teacher_topk of 51 entries.*it offers teacher_topk up to 50"):
        ScoringService(scripted_teacher(), None, ScoringSection(), Support(kind=SupportKind.TEACHER_TOPK, width=51))
