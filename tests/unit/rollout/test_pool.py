"""Many episodes at once: isolated, bounded in time, repeatable, and clean whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import NO_DRAWS, DrawSpec, GenerateRequest, Generation, Step, Task, Version
from asyncopd.rollout.pool import RolloutError, RolloutPool
from asyncopd.rollout.seeds import episode_seed, turn_seed
from asyncopd.seams import DeadlineExceeded, EngineDied

CALL = '<tool_call>{"name": "price", "arguments": {"item": "cup"}}</tool_call>'
V0 = Version(0, 0)


def answer(request: GenerateRequest) -> str:
    return CALL if request.request_id.endswith("-0") else "it is 4"


class House:
    """A pool with the environments it made."""

    def __init__(self, pool: RolloutPool, engine: Any, made: list[Any]) -> None:
        self.pool = pool
        self.engine = engine
        self.made = made

    async def live(self, task: Task, attempt: int = 1, sample: int = 0, on_turn: Any = None) -> Any:
        return await self.pool.run(attempt, task, sample, V0, on_turn)


@pytest.fixture
def house(shop: type, scripted_engine: type, section: RolloutSection, byte_chat: Any) -> Callable[..., House]:
    def build(
        script: Callable[[GenerateRequest], Any] = answer,
        make: Any = None,
        draws: DrawSpec = NO_DRAWS,
        **options: Any,
    ) -> House:
        made: list[Any] = []

        def open_shop() -> Any:
            made.append((make or shop)())
            return made[-1]

        engine = scripted_engine(byte_chat, script)
        pool = RolloutPool(engine, open_shop, byte_chat, section.model_copy(update=options), 11, draws)
        return House(pool, engine, made)

    return build


async def hang() -> None:
    await asyncio.sleep(3600)


async def test_never_more_episodes_than_allowed_and_all_end(house, cup: Task) -> None:
    async def slow(request: GenerateRequest) -> str:
        await asyncio.sleep(0.001)
        return answer(request)

    place = house(slow, max_concurrent=7)
    trajectories = await asyncio.gather(*(place.live(cup, attempt, attempt) for attempt in range(40)))
    assert [t.attempt for t in trajectories] == list(range(40))
    assert all(t.outcome == "success" for t in trajectories)
    assert place.engine.most_alive == 7
    assert len(place.made) == 7


async def test_environments_are_used_again_and_closed_once(house, cup: Task) -> None:
    place = house()
    for attempt in range(3):
        await place.live(cup, attempt)
    assert [s.log for s in place.made] == [["reset", "step", "step", "finish"] * 3]
    await place.pool.close()
    await place.pool.close()
    assert place.made[0].log.count("close") == 1


async def test_requests_depend_on_task_sample_and_turn_not_on_order(house, cup: Task) -> None:
    lamp = Task(id="lamp", domain="shop", data={"item": "lamp"})

    async def seeds(order: list[tuple[int, Task, int]]) -> dict[tuple[str, int, int], int]:
        place = house()
        await asyncio.gather(*(place.live(task, attempt, sample) for attempt, task, sample in order))
        names = {str(attempt): (task.id, sample) for attempt, task, sample in order}
        return {
            (*names[r.trajectory_id], int(r.request_id.partition("-")[2])): r.sampling.seed
            for r in place.engine.requests
        }

    forward = await seeds([(1, cup, 0), (2, cup, 1), (3, lamp, 0)])
    backward = await seeds([(9, lamp, 0), (8, cup, 1), (7, cup, 0)])
    assert forward == backward
    assert len(set(forward.values())) == len(forward) == 6
    assert forward["cup", 1, 0] == turn_seed(11, "cup", 1, 0)


async def test_environment_is_seeded_by_task_and_sample(house, cup: Task) -> None:
    place = house()
    for attempt, sample in ((1, 0), (2, 1), (3, 0)):
        await place.live(cup, attempt, sample)
    assert place.made[0].seeds == [episode_seed(11, "cup", sample) for sample in (0, 1, 0)]


async def test_request_says_how_the_distribution_is_cut_and_which_draws_are_wanted(house, cup: Task) -> None:
    plain, cut = house(), house(top_p=0.9, top_k=7, draws=DrawSpec(head=4, tail=2))
    for place in (plain, cut):
        await place.live(cup)
    assert all(r.draws == NO_DRAWS and (r.sampling.top_p, r.sampling.top_k) == (1, 0) for r in plain.engine.requests)
    assert all(r.draws == DrawSpec(head=4, tail=2) for r in cut.engine.requests)
    assert all((r.sampling.top_p, r.sampling.top_k) == (0.9, 7) for r in cut.engine.requests)


async def test_request_carries_the_limits_and_the_version_floor(house, cup: Task) -> None:
    place = house(temperature=0.7, max_turn_tokens=50, generate_timeout_s=5, episode_timeout_s=60)
    now = asyncio.get_running_loop().time()
    await place.pool.run(1, cup, 0, Version(1, 4))
    request = place.engine.requests[0]
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.7, 50)
    assert request.min_version == Version(1, 4)
    assert request.sampling.stop_ids == place.pool.chat.stop_ids
    assert now + 4 < request.deadline < now + 7
    brief = house(generate_timeout_s=500, episode_timeout_s=5)
    await brief.live(cup)
    assert brief.engine.requests[0].deadline < now + 10


async def test_the_next_turn_wants_no_weights_older_than_the_last(house, cup: Task) -> None:
    place = house()
    await place.pool.run(1, cup, 0, V0, engine="student-1")
    first, second = place.engine.requests
    assert (first.min_version, second.min_version) == (V0, Version(0, 3)), "the engine serves version 0.3"
    assert first.engine == second.engine == "student-1"


@pytest.mark.parametrize("method", ["reset", "step", "finish"])
async def test_environment_that_raises_fails_its_episode_only(house, shop: type, cup: Task, method: str) -> None:
    mischief = iter([{method: lambda: 1 / 0}, {}])
    place = house(make=lambda: shop(next(mischief)))
    with pytest.raises(RolloutError, match="division by zero") as caught:
        await place.live(cup)
    assert caught.value.reason == "environment"
    assert place.made[0].log[-1] == "close"
    assert (await place.live(cup, 2)).outcome == "success"
    assert len(place.made) == 2, "an environment that raised served another episode"


async def test_close_that_raises_or_hangs_hides_nothing(house, shop: type, cup: Task, monkeypatch, caplog) -> None:
    monkeypatch.setattr("asyncopd.rollout.environments.CLOSE_TIMEOUT_S", 0.02)
    for bad in (lambda: 1 / 0, hang):
        place = house(make=lambda bad=bad: shop({"step": lambda: [][0], "close": bad}))
        with pytest.raises(RolloutError, match="IndexError"):
            await place.live(cup)
    assert caplog.text.count("closing an environment failed: Shop") == 2


async def test_environment_that_cannot_be_made_is_named(house, cup: Task) -> None:
    with pytest.raises(RolloutError, match=r"environment: ZeroDivisionError"):
        await house(make=lambda: 1 / 0).live(cup)


async def test_environment_may_report_an_infrastructure_error(house, shop: type, cup: Task) -> None:
    class Judged(shop):
        async def finish(self, trajectory: Any) -> Step:
            return Step(outcome="infrastructure_error")

    with pytest.raises(RolloutError) as caught:
        await house(make=Judged).live(cup)
    assert caught.value.reason == "environment"


async def test_engine_that_raises_is_retried_by_the_caller(house, cup: Task) -> None:
    def fail(request: GenerateRequest) -> str:
        raise ConnectionError("reset by peer")

    place = house(fail)
    with pytest.raises(RolloutError, match="ConnectionError: reset by peer") as caught:
        await place.live(cup)
    assert caught.value.reason == "engine"


async def test_engine_deadline_is_a_deadline(house, cup: Task) -> None:
    def late(request: GenerateRequest) -> str:
        raise DeadlineExceeded("request 1-0 waited on engine e")

    with pytest.raises(RolloutError, match="waited on engine e") as caught:
        await house(late).live(cup)
    assert caught.value.reason == "deadline"


async def test_death_of_the_engine_is_not_retried(house, cup: Task) -> None:
    def die(request: GenerateRequest) -> str:
        raise EngineDied("engine e is gone")

    with pytest.raises(EngineDied, match="is gone"):
        await house(die).live(cup)


async def test_error_of_the_callers_own_callback_is_the_callers(house, cup: Task) -> None:
    async def full(generation: Generation) -> None:
        raise OSError("disk full")

    place = house()
    with pytest.raises(OSError, match="disk full"):
        await place.live(cup, on_turn=full)
    assert place.made[0].log == ["reset", "close"]


async def test_every_generation_is_reported_also_of_episodes_that_fail(house, shop: type, cup: Task) -> None:
    seen: list[int] = []

    async def note(generation: Generation) -> None:
        seen.append(len(generation.ids_R))

    place = house(make=lambda: shop({"finish": lambda: 1 / 0}))
    with pytest.raises(RolloutError):
        await place.live(cup, on_turn=note)
    assert seen == [len(ids) for ids in place.engine.said]


async def test_aborted_generation_is_reported_and_fails_the_episode(house, cup: Task) -> None:
    seen: list[str] = []

    async def note(generation: Generation) -> None:
        seen.append(generation.stop_reason)

    place = house(lambda _: place.engine.generation([5, 6], "aborted"))
    with pytest.raises(RolloutError, match="aborted turn 0 of attempt 1") as caught:
        await place.live(cup, on_turn=note)
    assert (caught.value.reason, seen) == ("engine", ["aborted"])


@pytest.mark.parametrize("method", ["reset", "step", "finish"])
async def test_episode_that_outlives_its_deadline_fails_and_says_where(
    house, shop: type, cup: Task, method: str
) -> None:
    place = house(make=lambda: shop({method: hang}), episode_timeout_s=0.05)
    with pytest.raises(RolloutError, match="at last in environment") as caught:
        await place.live(cup)
    assert caught.value.reason == "deadline"
    assert place.made[0].log[-1] == "close"


async def test_deadline_says_when_the_engine_was_waited_for(house, cup: Task) -> None:
    with pytest.raises(RolloutError, match=r"over 0\.05 s, at last in engine"):
        await house(lambda _: hang(), episode_timeout_s=0.05).live(cup)


async def test_waiting_for_a_slot_is_not_part_of_the_episode(house, cup: Task) -> None:
    async def slow(request: GenerateRequest) -> str:
        await asyncio.sleep(0.03)
        return answer(request)

    place = house(slow, max_concurrent=1, episode_timeout_s=0.5)
    trajectories = await asyncio.gather(*(place.live(cup, attempt) for attempt in range(12)))
    assert len(trajectories) == 12


async def test_cancellation_closes_the_environment_and_frees_the_slot(house, cup: Task) -> None:
    asked = asyncio.Event()

    async def hang_once(request: GenerateRequest) -> str:
        if not asked.is_set():
            asked.set()
            await hang()
        return answer(request)

    place = house(hang_once, max_concurrent=1)
    task = asyncio.create_task(place.live(cup))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert place.made[0].log == ["reset", "close"]
    assert (place.engine.alive, (await place.live(cup, 2)).outcome) == (0, "success")
