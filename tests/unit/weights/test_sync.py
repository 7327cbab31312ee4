"""The update protocol under injected faults; that real receivers obey it is tested with real engines."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch

from asyncopd.records import Manifest, SendOrder, Version, WeightFile
from asyncopd.tensors.mapped import map_tensors, write_tensors
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

VERSION = Version(0, 1)


class Source:
    def __init__(self, log: list[tuple[str, str]]) -> None:
        self.log = log

    async def send(self, order: SendOrder) -> WeightFile:
        self.log.append(("learner", "send"))
        return write_tensors(order.path, order.version, [("w", torch.full((3,), float(order.version.step)))])


class Receiver:
    """Records its phases; in phase `fault` it raises, or hangs."""

    def __init__(self, name: str, log: list[tuple[str, str]], fault: str = "", *, hang: bool = False) -> None:
        self.name, self.log, self.fault, self.hang = name, log, fault, hang
        self.weights: torch.Tensor | None = None
        self.faulty = asyncio.Event()

    async def _enter(self, phase: str) -> None:
        await asyncio.sleep(0.01 if self.name == "slow" else 0)
        self.log.append((self.name, phase))
        if phase == self.fault:
            self.faulty.set()
            if self.hang:
                await asyncio.Event().wait()
            raise OSError("no luck")

    async def prepare(self, manifest: Manifest) -> None:
        await self._enter("prepare")

    async def freeze(self) -> None:
        await self._enter("freeze")

    async def receive(self, manifest: Manifest) -> None:
        await self._enter("receive")
        self.weights = dict(map_tensors(manifest.files[-1]))["w"].clone()

    async def commit(self, version: Version) -> None:
        await self._enter("commit")

    async def thaw(self) -> None:
        await self._enter("thaw")


async def test_engines_pass_each_phase_together_after_the_sender(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    receivers = {name: Receiver(name, log) for name in ("quick", "slow")}
    sync = FileWeightSync(lambda: list(receivers.values()), OwnedDirectory(tmp_path), 5)
    report = await sync.publish(VERSION, Source(log))
    phases = ("prepare", "freeze", "receive", "commit", "thaw")
    assert [phase for _, phase in log] == ["send", *(phase for phase in phases for _ in receivers)]
    assert all(torch.equal(receiver.weights, torch.ones(3)) for receiver in receivers.values())
    assert (report.version, report.bytes) == (VERSION, 12)
    assert 0.04 <= report.pause_seconds < 5
    sync.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("hang", [False, True], ids=["raises", "hangs"])
@pytest.mark.parametrize("phase", ["prepare", "freeze", "receive", "commit", "thaw"])
async def test_an_engine_that_fails_a_phase_is_named_and_the_others_go_on(
    tmp_path: Path, phase: str, hang: bool
) -> None:
    log: list[tuple[str, str]] = []
    receivers = {"good": Receiver("good", log), "bad": Receiver("bad", log, phase, hang=hang)}
    sync = FileWeightSync(lambda: list(receivers.values()), OwnedDirectory(tmp_path), 0.1)
    what = "did not end within 0.1 s" if hang else "failed: no luck"
    report = await sync.publish(VERSION, Source(log))
    assert report.failed == {"bad": f"engine bad: {phase} of version 0.1 {what}"}
    assert torch.equal(receivers["good"].weights, torch.ones(3))
    assert [p for name, p in log if name == "good"] == ["prepare", "freeze", "receive", "commit", "thaw"]
    assert (("bad", "thaw") in log) == (phase != "prepare")
    later = {"prepare": "freeze", "freeze": "receive", "receive": "commit"}.get(phase)
    assert ("bad", later) not in log
    receivers["bad"].fault = ""
    assert await sync.catch_up(receivers["bad"]) == VERSION
    assert torch.equal(receivers["bad"].weights, torch.ones(3))
    sync.close()


async def test_a_publish_that_reaches_no_engine_fails_with_the_first_cause(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    sync = FileWeightSync(lambda: [Receiver("bad", log, "receive")], OwnedDirectory(tmp_path), 5)
    with pytest.raises(PublishFailed, match=r"^engine bad: receive of version 0\.1 failed: no luck"):
        await sync.publish(VERSION, Source(log))
    assert log[-1] == ("bad", "thaw")
    sync.close()


async def test_an_engine_that_comes_late_finds_the_newest_weights_only(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    late = Receiver("late", log)
    sync = FileWeightSync(lambda: [Receiver("early", log)], OwnedDirectory(tmp_path), 5)
    assert await sync.catch_up(late) is None
    for step in (1, 2, 3):
        await sync.publish(Version(0, step), Source(log))
    assert await sync.catch_up(late) == Version(0, 3)
    assert torch.equal(late.weights, torch.full((3,), 3.0))
    assert len(list(sync._directory.path.iterdir())) == 1
    sync.close()


async def test_a_sender_that_fails_pauses_nobody(tmp_path: Path) -> None:
    class Dead:
        async def send(self, order: SendOrder) -> WeightFile:
            raise OSError(28, "No space left on device")

    log: list[tuple[str, str]] = []
    sync = FileWeightSync(lambda: [Receiver("engine", log)], OwnedDirectory(tmp_path), 5)
    with pytest.raises(PublishFailed, match=r"the learner: send of version 0\.1 failed: .*No space left"):
        await sync.publish(VERSION, Dead())
    assert log == []
    sync.close()


async def test_a_cancelled_publish_thaws(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    receiver = Receiver("engine", log, "receive", hang=True)
    sync = FileWeightSync(lambda: [receiver], OwnedDirectory(tmp_path), 60)
    publishing = asyncio.create_task(sync.publish(VERSION, Source(log)))
    await receiver.faulty.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert log[-1] == ("engine", "thaw")
    sync.close()


async def test_publishes_do_not_overlap(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    sync = FileWeightSync(lambda: [Receiver("slow", log)], OwnedDirectory(tmp_path), 5)
    await asyncio.gather(*(sync.publish(Version(0, step), Source(log)) for step in (1, 2)))
    assert [phase for _, phase in log] == ["send", "prepare", "freeze", "receive", "commit", "thaw"] * 2
    sync.close()
