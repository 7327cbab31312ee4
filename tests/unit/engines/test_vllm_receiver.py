"""A weight update as vLLM's controls see it: in order, never past a fault, and with no wrong weights committed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.vllm.receiver import KvPolicy, RefusedUpdate, VllmReceiver, WrongWeights
from asyncopd.engines.vllm.update_state import UpdateState
from asyncopd.records import Manifest, Version, WeightFile

SERVED = Version(1, 4)
NEXT = Version(1, 5)


def manifest(version: Version, checksum: int = 7) -> Manifest:
    file = WeightFile(
        version=version, path="weights", format="mapped", tensors=(), checksum=checksum, dense_checksum=checksum
    )
    return Manifest(files=(file,))


class Worker:
    """Answers as the extension in vLLM's worker does, and remembers what was asked of vLLM, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.state = UpdateState(asked=None, ready=False, error=None, loaded=None, checksum=None, whole=True)
        self.preparing = 2  # polls
        self.error: str | None = None
        self.fault: str | None = None
        self.loading = asyncio.Event()
        self.loading.set()

    def _becomes(self, **fields: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)

    async def call(self, method: str, **arguments: str) -> list[Any]:
        if method == "prepare_weights":
            self.said.append("prepare")
            asked = msgspec.json.decode(arguments["manifest"], type=Manifest)
            self._becomes(asked=asked.version, ready=False, error=self.error)
            self.prepared = asked
            return [None]
        self.preparing -= 1
        if self.preparing <= 0 and self.state.error is None:
            self._becomes(ready=True)
        return [msgspec.to_builtins(self.state)]

    async def update(self, info: dict[str, Any]) -> None:
        self.said.append(f"load {info['version']}")
        await self.loading.wait()
        if self.fault == "before the load":
            raise RuntimeError(self.fault)
        if self.fault == "half-way":
            self._becomes(whole=False)
            raise RuntimeError(self.fault)
        self._becomes(loaded=self.prepared.version, checksum=self.prepared.checksum, whole=True)
        if self.fault == "other weights":
            self._becomes(checksum=8)

    async def pause(self) -> None:
        self.said.append("pause")

    async def resume(self) -> None:
        self.said.append("resume")

    async def recompute(self) -> None:
        self.said.append("recompute")

    async def start_update(self) -> None:
        self.said.append("start")

    async def finish_update(self) -> None:
        self.said.append("finish")

    async def label(self, version: str) -> None:
        self.said.append(f"label {version}")


class Engine:
    """What an engine consists of, but for generation."""

    def __init__(self, kv_policy: KvPolicy = "keep") -> None:
        self.worker = Worker()
        self.gate = Gate(SERVED)
        self.receiver = VllmReceiver("e", self.worker, self.gate, Lifeline("e"), kv_policy)

    async def update(self, wanted: Manifest) -> None:
        await self.receiver.prepare(wanted)
        await self.receiver.freeze()
        try:
            await self.receiver.receive(wanted)
            await self.receiver.commit(wanted.version)
        finally:
            await self.receiver.thaw()


async def test_generation_is_paused_only_once_the_worker_is_ready() -> None:
    engine = Engine()
    engine.worker.preparing = 3
    await engine.update(manifest(NEXT))
    assert engine.worker.said == ["prepare", "pause", "start", "load 1.5", "finish", "label 1.5", "resume"]
    assert (engine.gate.version, engine.gate.whole) == (NEXT, True)


async def test_keys_and_values_are_recomputed_before_tokens_are_labelled() -> None:
    engine = Engine("recompute")
    await engine.update(manifest(NEXT))
    assert engine.worker.said[-3:] == ["recompute", "label 1.5", "resume"]


@pytest.mark.parametrize("version", [SERVED, Version(1, 3), Version(0, 9)])
async def test_a_late_repeated_or_rolled_back_version_is_refused_by_name(version: Version) -> None:
    engine = Engine()
    with pytest.raises(RefusedUpdate, match=rf"version {version} is not newer than 1\.4, which engine e serves"):
        await engine.update(manifest(version))
    assert engine.worker.said == []


async def test_a_new_timeline_is_newer_than_any_step_of_the_old_one() -> None:
    engine = Engine()
    await engine.update(manifest(Version(2, 0)))
    assert engine.gate.version == Version(2, 0)


async def test_what_the_worker_cannot_prepare_pauses_nothing() -> None:
    engine = Engine()
    engine.worker.error = "OtherModel: the vocabulary"
    with pytest.raises(RefusedUpdate, match="the vocabulary"):
        await engine.update(manifest(NEXT))
    assert engine.worker.said == ["prepare"]
    assert (engine.gate.version, engine.gate.whole) == (SERVED, True)


async def test_a_preparation_that_another_one_replaced_is_given_up() -> None:
    engine = Engine()
    engine.worker.preparing = 1000
    preparing = asyncio.create_task(engine.receiver.prepare(manifest(NEXT)))
    await asyncio.sleep(0.03)
    await engine.worker.call("prepare_weights", manifest=msgspec.json.encode(manifest(Version(1, 6))).decode())
    with pytest.raises(RefusedUpdate, match=r"version 1\.5 was superseded by 1\.6"):
        await asyncio.wait_for(preparing, 5)


async def test_a_load_refused_before_it_began_leaves_the_old_weights_in_service() -> None:
    engine = Engine()
    engine.worker.fault = "before the load"
    with pytest.raises(RuntimeError, match="before the load"):
        await engine.update(manifest(NEXT))
    assert engine.worker.said[-1] == "resume"
    assert (engine.gate.version, engine.gate.whole) == (SERVED, True)


@pytest.mark.parametrize(("fault", "error"), [("half-way", RuntimeError), ("other weights", WrongWeights)])
async def test_weights_that_are_not_the_manifests_stay_paused_until_an_update_succeeds(fault: str, error) -> None:
    engine = Engine()
    engine.worker.fault = fault
    with pytest.raises(error):
        await engine.update(manifest(NEXT))
    assert "resume" not in engine.worker.said
    assert not any(said.startswith("label") for said in engine.worker.said)
    assert not engine.gate.whole
    engine.worker.fault = None
    await engine.update(manifest(NEXT))
    assert engine.worker.said[-1] == "resume"
    assert (engine.gate.version, engine.gate.whole) == (NEXT, True)


async def test_weights_that_were_not_committed_may_be_replaced_by_those_served_before() -> None:
    engine = Engine()
    engine.worker.fault = "half-way"
    with pytest.raises(RuntimeError, match="half-way"):
        await engine.update(manifest(NEXT))
    engine.worker.fault = None
    await engine.update(manifest(SERVED))
    assert (engine.gate.version, engine.gate.whole) == (SERVED, True)


async def test_an_update_after_one_that_was_cut_off_waits_until_the_worker_is_through() -> None:
    engine = Engine()
    engine.worker.loading.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.update(manifest(NEXT)), 0.1)
    later = asyncio.create_task(engine.update(manifest(Version(1, 6))))
    await asyncio.sleep(0.05)
    assert engine.worker.said.count("start") == 1
    engine.worker.loading.set()
    await asyncio.wait_for(later, 5)
    assert [said for said in engine.worker.said if said in ("start", "finish")] == ["start", "finish"] * 2
    assert engine.gate.version == Version(1, 6)
