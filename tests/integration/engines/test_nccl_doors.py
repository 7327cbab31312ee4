"""The states of an NCCL update, with gloo in NCCL's place: what vLLM's classes do before and after it is their own."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer import nccl_engine
from vllm.model_executor.model_loader import reload

from asyncopd.engines.vllm.nccl import NcclReceiver
from asyncopd.records import Manifest, SendOrder, Version, WeightFile
from asyncopd.tensors.nccl import NcclSender
from asyncopd.weights.collective import CollectiveWeightSync
from asyncopd.weights.protocol import NoEngineCame, PublishFailed

pytestmark = pytest.mark.integration

V1, V2 = Version(0, 1), Version(0, 2)
TIMEOUT_S = 20.0


class Communicator:
    """Stands for vLLM's NCCL communicator; counts who is in a broadcast."""

    inside = 0

    def __init__(self, how: Any, rank: int) -> None:
        wait = datetime.timedelta(seconds=TIMEOUT_S)
        store = TCPStore(how.master_address, how.master_port, is_master=rank == 0, wait_for_workers=False, timeout=wait)
        self._group = ProcessGroupGloo(store, rank, how.world_size, wait)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        options = BroadcastOptions()
        options.rootRank = src
        Communicator.inside += 1
        self._group.broadcast([tensor], options).wait()
        Communicator.inside -= 1


def send_all(iterator: Iterator[tuple[str, torch.Tensor]], group: Communicator, src: int, **_: Any) -> None:
    for _name, tensor in iterator:
        group.broadcast(tensor, src)


def take_all(iterator: Any, group: Communicator, src: int, post_unpack_func: Callable[[Any], None], **_: Any) -> None:
    for name, (shape, dtype) in iterator:
        tensor = torch.empty(shape, dtype=dtype)
        group.broadcast(tensor, src)
        post_unpack_func([(name, tensor)])


@pytest.fixture(autouse=True)
def gloo_for_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda how: Communicator(how, 0))
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", lambda how, _: Communicator(how, how.rank_offset))
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", send_all)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_consumer", take_all)
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        monkeypatch.setattr(reload, name, lambda *_: None)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.loaded.update(named_tensors)


class Learner:
    """A `WeightSource` in a thread; `fault` is raised, or waited for, before the first tensor goes."""

    def __init__(self, fault: Exception | threading.Event | None = None) -> None:
        self.fault = fault
        self.given_up = False
        self._sender = NcclSender()

    async def send(self, order: SendOrder) -> WeightFile:
        try:
            return await asyncio.to_thread(self._sender.send, order, self._tensors(order.version))
        except asyncio.CancelledError:
            self.given_up = True
            raise

    def _tensors(self, version: Version) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(self.fault, Exception):
            raise self.fault
        yield from weights_of(version).items()


class Engine:
    """A `WeightReceiver` in threads; it fails or hangs in the phase `fault`, until it is `released`."""

    def __init__(self, name: str, fault: str = "", *, hang: bool = False) -> None:
        self.name, self.fault, self.hang = name, fault, hang
        self.released = threading.Event()
        self.log: list[str] = []
        self.version: Version | None = None
        self.model = Model()
        config = SimpleNamespace(parallel_config=SimpleNamespace(rank=0), model_config=None)
        self._receiver = NcclReceiver(self.model, config, torch.device("cpu"))

    def _enter(self, phase: str) -> None:
        self.log.append(phase)
        if phase == self.fault and self.hang:
            self.released.wait(TIMEOUT_S)
        if phase == self.fault:
            raise OSError("no luck")

    async def prepare(self, manifest: Manifest) -> None:
        await asyncio.to_thread(self._enter, "prepare")
        self._install = await asyncio.to_thread(self._receiver.prepare, manifest.files[-1])

    async def freeze(self) -> None:
        assert Communicator.inside == 0, "no byte moves before all are frozen"
        await asyncio.to_thread(self._enter, "freeze")

    async def receive(self, manifest: Manifest) -> None:
        await asyncio.to_thread(self._enter, "receive")
        await asyncio.to_thread(self._install)

    async def commit(self, version: Version) -> None:
        self.version = version

    async def thaw(self) -> None:
        self.log.append("thaw")

    def serves(self, version: Version) -> bool:
        expected = weights_of(version)
        return self.version == version and all(
            torch.equal(self.model.loaded[name], tensor) for name, tensor in expected.items()
        )


def weights_of(version: Version) -> dict[str, torch.Tensor]:
    torch.manual_seed(version.step)
    return {"embed.weight": torch.randn(64, 32), "norm.weight": torch.randn(7).bfloat16()}


def make_sync(engines: list[Engine], timeout_s: float = TIMEOUT_S) -> CollectiveWeightSync:
    return CollectiveWeightSync(
        lambda: engines,
        transport="nccl",
        host="127.0.0.1",
        workers=1,
        timeout_s=timeout_s,
        learner_timeout_s=timeout_s,
    )


async def test_every_engine_gets_every_version_behind_the_freeze() -> None:
    engines, learner = [Engine("a"), Engine("b")], Learner()
    sync = make_sync(engines)
    for version in (V1, V2):
        assert (await sync.publish(version, learner)).failed == {}
        assert all(engine.serves(version) for engine in engines)
    assert engines[0].log == ["prepare", "freeze", "receive", "thaw"] * 2
    sync.close()


async def test_a_newcomer_is_given_what_the_learner_holds() -> None:
    learner, late = Learner(), Engine("late")
    sync = make_sync([Engine("early")])
    await sync.publish(V1, learner)
    learner.fault = AssertionError("the learner has moved on")
    assert await sync.catch_up(late) == V1
    assert late.serves(V1)
    sync.close()


async def test_an_engine_that_fails_to_join_is_named_before_anybody_enters_nccl_and_the_others_are_served() -> None:
    good, bad = Engine("good"), Engine("bad", "prepare")
    sync = make_sync([bad, good])
    report = await sync.publish(V1, Learner())
    assert report.failed == {"bad": "engine bad: prepare of version 0.1 failed: no luck"}
    assert good.serves(V1)
    sync.close()


@pytest.mark.parametrize("phase", ["freeze", "receive"])
async def test_an_engine_that_fails_behind_the_freeze_costs_the_update_and_the_next_has_a_new_group(phase: str) -> None:
    good, bad, learner = Engine("good"), Engine("bad", phase), Learner()
    engines = [bad, good]
    sync = make_sync(engines, 2.0)
    with pytest.raises(NoEngineCame, match=rf"engine bad: {phase} of version 0\.1 failed: no luck") as failure:
        await sync.publish(V1, learner)
    assert set(failure.value.failed) == {"good", "bad"}
    assert good.version is None and good.model.loaded == {}
    del engines[0]
    assert (await sync.publish(V2, learner)).failed == {}
    assert good.serves(V2)
    sync.close()


async def test_a_learner_that_fails_is_named() -> None:
    engine = Engine("a")
    sync = make_sync([engine])
    with pytest.raises(PublishFailed, match=r"^the learner: send of version 0\.1 failed: out of memory"):
        await sync.publish(V1, Learner(MemoryError("out of memory")))
    assert engine.log == []
    sync.close()


async def test_a_learner_that_hangs_in_nccl_is_given_up_so_that_its_process_can_be_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", lambda **_: hanging.wait(TIMEOUT_S))
    learner, engine = Learner(), Engine("a")
    sync = make_sync([engine], 2.0)
    with pytest.raises(PublishFailed):
        await sync.publish(V1, learner)
    assert learner.given_up
    assert engine.version is None
    hanging.set()
    sync.close()
