"""Each invariant of a fleet, on engines that really die, hang and lag behind."""

from __future__ import annotations

import asyncio
import random

import msgspec
import numpy as np
import pytest
from support.mortal_engine import MortalEngine, bring, said
from support.tiny_models import turn

from asyncopd.engines.fleet import Fleet
from asyncopd.engines.member import Loss
from asyncopd.records import DrawSpec, GenerateRequest, Version
from asyncopd.seams import DeadlineExceeded, EngineDied


def fleet_of(*engines: MortalEngine) -> Fleet:
    fleet = Fleet("student", {})
    for engine in engines:
        fleet.join(engine)
    return fleet


def of_trajectory(name: str, request: GenerateRequest, **changes: object) -> GenerateRequest:
    return msgspec.structs.replace(request, trajectory_id=name, **changes)


def requests_of(*engines: MortalEngine) -> list[int]:
    return [len(engine.served) for engine in engines]


# --- where a request goes --------------------------------------------------------------------------


async def test_requests_are_spread_over_the_least_loaded() -> None:
    engines = [MortalEngine(f"e{i}") for i in range(3)]
    fleet = fleet_of(*engines)
    await asyncio.gather(*(fleet.generate(turn([2], seed=i)) for i in range(9)))
    assert requests_of(*engines) == [3, 3, 3]


async def test_the_first_turn_goes_where_it_is_counted_and_the_next_ones_to_the_same() -> None:
    engines = [MortalEngine(f"e{i}") for i in range(2)]
    fleet = fleet_of(*engines)
    for _ in range(3):
        await fleet.generate(of_trajectory("t", turn([2]), engine="e1"))
    assert requests_of(*engines) == [0, 3]


async def test_a_trajectory_stays_where_its_turn_went_after_a_death() -> None:
    engines = [MortalEngine(f"e{i}") for i in range(3)]
    fleet = fleet_of(*engines)
    fleet.lose("e0", Loss("is gone"))
    await fleet.generate(of_trajectory("t", turn([2]), engine="e0"))
    (home,) = [engine for engine in engines if engine.served]
    await asyncio.gather(*(fleet.generate(of_trajectory("t", turn([2]), engine="e0")) for _ in range(4)))
    assert len(home.served) == 5


async def test_a_request_is_given_to_engines_of_at_least_its_version_only() -> None:
    old, new = MortalEngine("old"), MortalEngine("new", Version(0, 3))
    fleet = fleet_of(old, new)
    asked = [turn([2], min_version=Version(0, 3)) for _ in range(4)]
    await asyncio.gather(*(fleet.generate(request) for request in asked))
    assert requests_of(old, new) == [0, 4]


async def test_a_lost_engine_gets_nothing_more() -> None:
    engines = [MortalEngine(f"e{i}") for i in range(2)]
    fleet = fleet_of(*engines)
    fleet.lose("e0", Loss("is drained"))
    await asyncio.gather(*(fleet.generate(of_trajectory("t", turn([2]), engine="e0")) for _ in range(4)))
    assert requests_of(*engines) == [0, 4]


# --- a turn whose engine dies ----------------------------------------------------------------------


async def test_a_turn_goes_on_elsewhere_after_the_tokens_that_came_of_it() -> None:
    first, second = MortalEngine("first", Version(0, 1)), MortalEngine("second", Version(0, 2))
    fleet = fleet_of(first, second)
    request = msgspec.structs.replace(turn([2, 3], max_tokens=12, seed=5), engine="first")
    answer = asyncio.create_task(fleet.generate(request))
    for _ in range(8):
        await asyncio.sleep(0)
    first.die()
    generation = await answer
    (continued,) = second.served
    moved = len(continued.resume_ids)
    assert 0 < moved < 12
    assert continued.request_id == f"{request.request_id}+1"
    assert generation.ids_R.tolist() == said(request, 12)
    assert generation.logp_R.tolist() == [-1.0 - i for i in range(12)]
    assert generation.version_R.tolist() == [Version(0, 1).pack()] * moved + [Version(0, 2).pack()] * (12 - moved)
    # The second engine computed the whole context itself, at one version.
    assert generation.mixed_kv_R.tolist() == [0] * 12
    assert fleet.counts["first"].tokens == moved and fleet.counts["first"].moved == 1
    assert fleet.counts["second"].tokens == 12 - moved and fleet.counts["second"].requests == 1


async def test_a_turn_goes_on_at_no_version_older_than_its_last_token() -> None:
    first, old = MortalEngine("first", Version(0, 2)), MortalEngine("old", Version(0, 1))
    fleet = fleet_of(first, old)
    request = msgspec.structs.replace(turn([2, 3], max_tokens=12, seed=5), engine="first")
    answer = asyncio.create_task(fleet.generate(request))
    for _ in range(8):
        await asyncio.sleep(0)
    first.die()
    for _ in range(40):
        await asyncio.sleep(0)
    assert not answer.done() and not old.served
    await bring(fleet.receivers[0], Version(0, 2))
    assert (await answer).ids_R.tolist() == said(request, 12)


async def test_without_last_words_a_turn_is_sampled_again_from_its_start() -> None:
    first, second = MortalEngine("first", tells=False), MortalEngine("second")
    fleet = fleet_of(first, second)
    request = msgspec.structs.replace(turn([2], max_tokens=12, seed=5), engine="first")
    answer = asyncio.create_task(fleet.generate(request))
    for _ in range(8):
        await asyncio.sleep(0)
    first.die()
    assert (await answer).ids_R.tolist() == said(request, 12)
    assert second.served[0].resume_ids == []
    assert fleet.counts["first"].tokens == 0


async def test_draws_that_died_with_their_engine_leave_their_tokens_undrawn() -> None:
    first, second = MortalEngine("first"), MortalEngine("second")
    fleet = fleet_of(first, second)
    request = msgspec.structs.replace(turn([2], max_tokens=12), engine="first", draws=DrawSpec(head=4))
    answer = asyncio.create_task(fleet.generate(request))
    for _ in range(8):
        await asyncio.sleep(0)
    first.die()
    generation = await answer
    moved = len(second.served[0].resume_ids)
    assert generation.undrawn_R is not None and generation.draws is not None
    assert generation.undrawn_R.tolist() == [1] * moved + [0] * (12 - moved)
    assert generation.draws.head_ids_RK[moved:].tolist() == [[7] * 4] * (12 - moved)
    assert generation.draws.head_ids_RK.shape == generation.draws.head_logp_RK.shape == (12, 4)


async def test_a_turn_that_was_complete_when_its_engine_died_is_not_sampled_on() -> None:
    first, second = MortalEngine("first", tells=True), MortalEngine("second")
    fleet = fleet_of(first, second)
    request = msgspec.structs.replace(turn([2], max_tokens=3, seed=1), engine="first", draws=DrawSpec(head=4))
    whole = first._generation(request, said(request, 3), [0, 0, 0], "aborted")

    async def dies(_: GenerateRequest) -> None:
        raise EngineDied("engine first died", whole)

    first.generate = dies
    generation = await fleet.generate(request)
    assert (generation.ids_R.tolist(), generation.stop_reason) == (said(request, 3), "length")
    assert second.served == []


@pytest.mark.parametrize("seed", range(25))
async def test_under_random_deaths_each_token_is_returned_once_as_it_was_sampled(seed: int) -> None:
    chance = random.Random(seed)
    fleet, names = Fleet("student", {}), iter(f"e{i}" for i in range(1000))
    engines: list[MortalEngine] = []
    version = Version(0, 0)

    def arrive() -> None:
        engines.append(MortalEngine(next(names), version, tells=chance.random() < 0.7))
        fleet.join(engines[-1])

    for _ in range(3):
        arrive()
    asked = [
        msgspec.structs.replace(
            turn([2, i], max_tokens=chance.randrange(5, 30), seed=i),
            trajectory_id=str(i % 10),
            draws=DrawSpec(head=chance.choice([0, 4])),
        )
        for i in range(40)
    ]
    answers = [asyncio.create_task(fleet.generate(request)) for request in asked]
    for _ in range(5):
        await asyncio.sleep(0)
    engines[0].die()
    while not all(answer.done() for answer in answers):
        await asyncio.sleep(0)
        if chance.random() < 0.1:
            chance.choice(engines).die()
        if chance.random() < 0.1:
            version = Version(0, version.step + 1)
            await asyncio.gather(*(bring(receiver, version) for receiver in fleet.receivers))
        if not fleet.versions or chance.random() < 0.1:
            arrive()
    for request, answer in zip(asked, answers, strict=True):
        generation, count = answer.result(), request.sampling.max_tokens
        assert generation.ids_R.tolist() == said(request, count)
        assert generation.logp_R.tolist() == [-1.0 - i for i in range(count)]
        assert (np.diff(generation.version_R) >= 0).all(), "a turn went back to older weights"
        assert len(generation.mixed_kv_R) == count
        if request.draws.head:
            assert generation.draws.head_ids_RK.shape == (count, 4)
    moved = sum(counts.moved for counts in fleet.counts.values())
    assert moved, "no turn was moved in this world"
    assert sum(counts.requests for counts in fleet.counts.values()) == len(asked)


# --- every wait ends -------------------------------------------------------------------------------


async def test_a_wait_past_its_deadline_says_who_waited_on_whom() -> None:
    fleet = fleet_of(MortalEngine("old"))
    fleet.coming[1] = "student-1.1 starts"
    request = of_trajectory("t", turn([2], min_version=Version(0, 3), within_s=0.05), request_id="17-2")
    with pytest.raises(DeadlineExceeded) as late:
        await fleet.generate(request)
    assert str(late.value) == (
        "request 17-2 of trajectory t waited on the engines of student for version 0.3: "
        "old serves 0.0 to 0 requests; student-1.1 starts"
    )


async def test_a_request_waits_for_an_engine_that_comes() -> None:
    fleet = Fleet("student", {})
    answer = asyncio.create_task(fleet.generate(turn([2])))
    await asyncio.sleep(0.01)
    assert not answer.done()
    fleet.join(MortalEngine("late"))
    assert len((await answer).ids_R) == 16


async def test_a_request_waits_for_an_engine_to_commit_its_version() -> None:
    fleet = fleet_of(MortalEngine("e0"))
    answer = asyncio.create_task(fleet.generate(turn([2], min_version=Version(0, 1))))
    await asyncio.sleep(0.01)
    assert not answer.done()
    await bring(fleet.receivers[0], Version(0, 1))
    assert (await answer).version_R[0] == Version(0, 1).pack()
    assert fleet.version == Version(0, 1)


async def test_once_no_engine_can_come_every_wait_ends() -> None:
    engine = MortalEngine("e0")
    fleet = fleet_of(engine)
    engine.die()
    answers = [asyncio.create_task(fleet.generate(turn([2]))) for _ in range(3)]
    ended = asyncio.create_task(fleet.ended())
    await asyncio.sleep(0.01)
    fleet.end("no engine of student is left")
    for task in (*answers, ended):
        with pytest.raises(EngineDied, match="no engine of student is left"):
            await task


async def test_followers_hear_of_every_change_in_order() -> None:
    fleet = fleet_of(MortalEngine("e0"))
    heard: list[tuple[str, Version | None]] = []
    with fleet.followed_by(lambda name, version: heard.append((name, version))):
        fleet.join(MortalEngine("e1"))
        await bring(fleet.receivers[0], Version(0, 1))
        fleet.lose("e1", Loss("is gone"))
        fleet.lose("e1", Loss("is gone again"))
    fleet.lose("e0", Loss("unheard"))
    assert heard == [("e1", Version(0, 0)), ("e0", Version(0, 1)), ("e1", None)]
    assert fleet.counts["e1"].lost == "is gone"
