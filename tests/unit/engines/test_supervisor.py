"""Each invariant of the supervisor, on engines that die, hang, do not start and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from support.mortal_engine import MortalEngine, bring
from support.tiny_models import turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.fleet import Fleet
from asyncopd.engines.supervisor import Supervisor
from asyncopd.records import Version
from asyncopd.seams import Engine, EngineDied, WeightReceiver

QUICK = {"probe_interval_s": 0.01, "probe_timeout_s": 0.05, "start_timeout_s": 0.2}
NEWEST = Version(0, 7)


class House:
    """A fleet under supervision, and all that it was told and did."""

    def __init__(self, make: Callable[[str], MortalEngine] = MortalEngine, **section: object) -> None:
        self.engines: list[MortalEngine] = []
        self.caught_up: list[str] = []
        self.warnings: list[str] = []
        self.failures: list[Exception] = []
        self.fleet = Fleet("student", {})
        self.section = EngineSection(**{**QUICK, **section})
        self.supervisor = Supervisor(self.fleet, self.section, self._start, self._catch_up, self.warnings.append)
        self._make = make

    async def _start(self, name: str, url: str | None) -> Engine:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        alive = [engine for engine in self.engines if not engine.closed]
        assert len(alive) < max(self.section.replicas, len(self.section.urls)), "two engines share a place"
        self.engines.append(self._make(name))
        return self.engines[-1]

    async def _catch_up(self, receiver: WeightReceiver) -> Version | None:
        self.caught_up.append(receiver.name)
        if receiver.name in self.fleet.versions:
            raise AssertionError(f"{receiver.name} serves before it caught up")
        await bring(receiver, NEWEST)
        return NEWEST

    async def serving(self, *names: str) -> None:
        """Wait until the fleet consists of these."""
        async with asyncio.timeout(5):
            while list(self.fleet.versions) != list(names):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def supervised(house: House) -> AsyncIterator[House]:
    await house.supervisor.start()
    try:
        yield house
    finally:
        await house.supervisor.close()
    assert all(engine.closed for engine in house.engines)


async def test_all_engines_start_together_and_have_names_of_their_own() -> None:
    async with supervised(House(replicas=3)) as house:
        assert list(house.fleet.versions) == ["student-0", "student-1", "student-2"]
        assert house.caught_up == []


async def test_one_that_does_not_start_ends_the_start_and_leaves_no_other() -> None:
    house = House(replicas=3)
    house.failures = [ValueError("no such model")]
    with pytest.raises(ValueError, match="no such model"):
        await house.supervisor.start()
    await house.supervisor.close()
    assert all(engine.closed for engine in house.engines)


async def test_one_killed_while_it_starts_is_started_once_more() -> None:
    house = House()
    house.failures = [EngineDied("vLLM's engine core was killed by signal 9 while it started")]
    async with supervised(house):
        assert list(house.fleet.versions) == ["student-0"]
    (warning,) = house.warnings
    assert "engine student-0 did not start" in warning and "killed by signal 9" in warning
    house = House()
    house.failures = [EngineDied("killed")] * 2
    with pytest.raises(EngineDied):
        await house.supervisor.start()
    await house.supervisor.close()


async def test_a_dead_engine_is_replaced_by_one_that_has_caught_up() -> None:
    async with supervised(House(replicas=2)) as house:
        house.engines[0].die()
        await house.serving("student-1", "student-0.1")
        assert house.caught_up == ["student-0.1"]
        assert house.fleet.versions["student-0.1"] == NEWEST
        assert house.warnings == [
            "engine student-0 died: it was killed; student-0.1 starts in its place (1 of 8 replacements)"
        ]
        assert house.fleet.counts["student-0"].lost == "engine student-0 died: it was killed"
        house.engines[2].die()
        await house.serving("student-1", "student-0.2")


async def test_a_request_finds_the_death_before_the_probe_does_and_waits_for_the_replacement() -> None:
    async with supervised(House(probe_interval_s=60)) as house:
        house.engines[0].die()
        generation = await house.fleet.generate(turn([2]))
        assert set(generation.version_R.tolist()) == {NEWEST.pack()}
        assert list(house.fleet.versions) == ["student-0.1"]


async def test_an_engine_that_hangs_is_found_closed_and_replaced_and_its_turns_go_on() -> None:
    async with supervised(House()) as house:
        house.engines[0].hang()
        answer = asyncio.create_task(house.fleet.generate(turn([2])))
        await house.serving("student-0.1")
        assert len((await answer).ids_R) == 16
        assert "did not answer within 0.05 s (engine.probe_timeout_s)" in house.warnings[0]


async def test_an_engine_that_loads_weights_is_not_taken_for_one_that_hangs() -> None:
    async with supervised(House()) as house:
        (receiver,) = house.fleet.receivers
        house.engines[0].hang()
        await receiver.freeze()
        await asyncio.sleep(0.2)
        assert house.warnings == []
        await receiver.commit(Version(0, 1))
        await receiver.thaw()
        await house.serving("student-0.1")


async def test_a_drained_engine_finishes_its_turns_and_is_replaced() -> None:
    def slow(name: str) -> MortalEngine:
        return MortalEngine(name, pace_s=0.001)

    async with supervised(House(slow, replicas=2, probe_timeout_s=5)) as house:
        answers = [asyncio.create_task(house.fleet.generate(turn([2], max_tokens=20))) for _ in range(4)]
        await asyncio.sleep(0.005)
        house.supervisor.drain("student-0", "engine student-0: commit of version 0.1 failed: no luck")
        await house.serving("student-1", "student-0.1")
        first, _, third = house.engines
        assert first.closed and len(first.served) == 2
        await asyncio.gather(*answers)
        assert house.fleet.counts["student-0"].moved == 0 and third.served == []


async def test_turns_that_do_not_finish_within_the_drain_move() -> None:
    async with supervised(House(replicas=2)) as house:
        house.engines[0].hang()
        request = turn([2])
        answer = asyncio.create_task(house.fleet.generate(request))
        await asyncio.sleep(0)
        house.supervisor.drain("student-0", "engine student-0: thaw of version 0.1 failed: no luck")
        assert len((await answer).ids_R) == 16
        assert house.fleet.counts["student-0"].moved == 1


async def test_replacements_end_and_those_left_go_on() -> None:
    async with supervised(House(replicas=2, max_replacements=1)) as house:
        house.engines[0].die()
        await house.serving("student-1", "student-0.1")
        house.engines[2].die()
        await house.serving("student-1")
        await asyncio.sleep(0.1)
        assert len((await house.fleet.generate(turn([2]))).ids_R) == 16
        assert house.warnings[-1].endswith("it is not replaced (engine.max_replacements = 1), student-1 is left")


async def test_when_no_engine_is_left_and_none_may_come_every_wait_ends() -> None:
    async with supervised(House(replicas=2, max_replacements=0)) as house:
        waiting = asyncio.create_task(house.fleet.generate(turn([2], min_version=NEWEST)))
        for engine in house.engines:
            engine.die()
        with pytest.raises(EngineDied, match=r"no engine of student is left; of the last, engine student-. died"):
            await house.fleet.ended()
        with pytest.raises(EngineDied, match="no engine of student is left"):
            await waiting


async def test_a_replacement_that_does_not_start_is_tried_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncopd.engines.supervisor._PAUSE_S", 0.0)
    async with supervised(House(replicas=2)) as house:
        house.failures = [OSError("no memory")] * 2
        house.engines[0].die()
        await house.serving("student-1", "student-0.3")
        assert [warning.partition(";")[0] for warning in house.warnings] == [
            "engine student-0 died: it was killed",
            "engine student-0.1 did not start: no memory",
            "engine student-0.2 did not start: no memory",
        ]
        house.failures = [OSError("no memory")] * 3
        house.engines[-1].die()
        await house.serving("student-1")
        await asyncio.sleep(0.1)
        assert house.warnings[-1] == (
            "engine student-0.6 did not start: no memory; it is not replaced (3 did not start), student-1 is left"
        )


async def test_a_replacement_that_cannot_catch_up_is_closed() -> None:
    async with supervised(House(replicas=2, max_replacements=1)) as house:

        async def fails(_: WeightReceiver) -> Version | None:
            raise OSError("torn weights")

        house.supervisor._catch_up = fails
        house.engines[0].die()
        await house.serving("student-1")
        await asyncio.sleep(0.05)
        assert house.engines[2].closed
        assert "engine student-0.1 did not start: torn weights" in house.warnings[-1]


async def test_a_server_of_others_is_taken_in_again_once_it_answers() -> None:
    urls = ["http://a:8000", "http://b:8000"]
    async with supervised(House(urls=urls, max_replacements=0, use="vllm_server")) as house:
        house.failures = [ConnectionRefusedError("refused")] * 3
        house.engines[1].die()
        await house.serving("student-0", "student-1.1")
        assert house.caught_up == ["student-1.1"] and house.failures == []
        assert house.warnings == [
            "engine student-1 died: it was killed; it is taken in again once http://b:8000 answers",
            "http://b:8000 answers again, and serves as student-1.1",
        ]


async def test_servers_of_others_are_looked_for_no_longer_than_a_start_may_take_when_none_is_left() -> None:
    async with supervised(House(urls=["http://a:8000"], use="vllm_server")) as house:
        house.failures = [ConnectionRefusedError("refused")] * 1000
        house.engines[0].die()
        async with asyncio.timeout(5):
            with pytest.raises(EngineDied, match="no engine of student is left"):
                await house.fleet.ended()


async def test_what_is_awaited_is_said() -> None:
    async with supervised(House()) as house:
        starting = asyncio.Event()

        async def waits(name: str, url: str | None) -> Engine:
            await starting.wait()
            return MortalEngine(name)

        house.supervisor._start = waits
        house.engines[0].die()
        await house.serving()
        await asyncio.sleep(0.05)
        assert house.fleet.describe() == ["student-0.1 starts"]
        starting.set()
        await house.serving("student-0.1")


async def test_once_stopped_nothing_is_replaced() -> None:
    async with supervised(House()) as house:
        house.supervisor.stop()
        house.engines[0].die()
        answer = asyncio.create_task(house.fleet.generate(turn([2])))
        await asyncio.sleep(0.1)
        assert len(house.engines) == 1 and house.warnings == []
        answer.cancel()
