"""The update protocol under injected faults; that real receivers obey it is tested with real engines."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch

from asyncopd.models.mapped import map_tensors, write_tensors
from asyncopd.records import Manifest, Version
from asyncopd.weights.sync import PublishFailed, ShmWeightSync

VERSION = Version(0, 1)


class Source:
    def __init__(self, log: list[tuple[str, str]]) -> None:
        self.log = log

    async def send(self, version: Version, path: str) -> Manifest:
        self.log.append(("learner", "send"))
        return write_tensors(path, version, [("w", torch.full((3,), float(version.step)))])


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

    async def freeze(self) -> None:
        await self._enter("freeze")

    async def receive(self, manifest: Manifest) -> None:
        await self._enter("receive")
        self.weights = dict(map_tensors(manifest))["w"].clone()

    async def commit(self, version: Version) -> None:
        await self._enter("commit")

    async def thaw(self) -> None:
        await self._enter("thaw")


async def test_engines_pass_each_phase_together_after_the_sender(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    receivers = {name: Receiver(name, log) for name in ("quick", "slow")}
    sync = ShmWeightSync(receivers.values(), tmp_path, 5)
    report = await sync.publish(VERSION, Source(log))
    assert [phase for _, phase in log] == ["send", *(p for p in ("freeze", "receive", "commit", "thaw") for _ in "12")]
    assert all(torch.equal(receiver.weights, torch.ones(3)) for receiver in receivers.values())
    assert (report.version, report.bytes) == (VERSION, 12)
    assert 0.04 <= report.pause_seconds < 5
    sync.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("hang", [False, True], ids=["raises", "hangs"])
@pytest.mark.parametrize("phase", ["freeze", "receive", "commit", "thaw"])
async def test_a_fault_in_any_phase_is_named_and_every_engine_is_thawed(tmp_path: Path, phase: str, hang: bool) -> None:
    log: list[tuple[str, str]] = []
    receivers = {"good": Receiver("good", log), "bad": Receiver("bad", log, phase, hang=hang)}
    sync = ShmWeightSync(receivers.values(), tmp_path, 0.1)
    what = "did not end within 0.1 s" if hang else "failed: no luck"
    with pytest.raises(PublishFailed, match=rf"^engine bad: {phase} of version 0\.1 {what}"):
        await sync.publish(VERSION, Source(log))
    assert {name for name, what in log if what == "thaw"} == {"good", "bad"}
    later = {"freeze": "receive", "receive": "commit"}.get(phase)
    assert later not in {what for _, what in log}
    receivers["bad"].fault = ""
    await sync.publish(Version(0, 2), Source(log))
    assert torch.equal(receivers["bad"].weights, torch.full((3,), 2.0))
    sync.close()


async def test_a_sender_that_fails_pauses_nobody(tmp_path: Path) -> None:
    class Dead:
        async def send(self, version: Version, path: str) -> Manifest:
            raise OSError(28, "No space left on device")

    log: list[tuple[str, str]] = []
    sync = ShmWeightSync([Receiver("engine", log)], tmp_path, 5)
    with pytest.raises(PublishFailed, match=r"the learner: send of version 0\.1 failed: .*No space left"):
        await sync.publish(VERSION, Dead())
    assert log == []
    sync.close()


async def test_a_cancelled_publish_thaws(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    receiver = Receiver("engine", log, "receive", hang=True)
    sync = ShmWeightSync([receiver], tmp_path, 60)
    publishing = asyncio.create_task(sync.publish(VERSION, Source(log)))
    await receiver.faulty.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert log[-1] == ("engine", "thaw")
    sync.close()


async def test_publishes_do_not_overlap(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    sync = ShmWeightSync([Receiver("slow", log)], tmp_path, 5)
    await asyncio.gather(*(sync.publish(Version(0, step), Source(log)) for step in (1, 2)))
    assert [phase for _, phase in log] == ["send", "freeze", "receive", "commit", "thaw"] * 2
    sync.close()
