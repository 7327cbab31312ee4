"""Chains of weight files from a real sender to real shadows, through a directory or a URL."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.core import url_to_fs

from asyncopd.records import Manifest, PublishReport, SendOrder, Version, WeightFile
from asyncopd.tensors.sender import Sender
from asyncopd.tensors.shadow import Shadow
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.remote import RemoteDirectory
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import Directory, FileWeightSync


class Learner:
    """A `WeightSource` whose tensors move by `share` before each send."""

    def __init__(self) -> None:
        self.tensors = {"w": torch.randn(300, 50).to(torch.bfloat16), "b": torch.zeros(50, dtype=torch.bfloat16)}
        self.sender = Sender()
        self.share = 0.02
        self.orders: list[SendOrder] = []
        self.seen: list[list[str]] = []

    async def send(self, order: SendOrder) -> WeightFile:
        self.orders.append(order)
        filesystem, name = url_to_fs(os.path.dirname(order.path))
        self.seen.append(sorted(os.path.basename(path) for path in filesystem.ls(name, detail=False)))
        moved = torch.rand(300, 50) < self.share
        self.tensors["w"] = torch.where(moved, torch.randn(300, 50).to(torch.bfloat16), self.tensors["w"])
        return self.sender.send(order, self.tensors.items())


class Receiver:
    """Keeps a shadow; fails its next update where `fault` says so."""

    def __init__(self, name: str = "engine") -> None:
        self.name = name
        self.shadow = Shadow()
        self.fault = False
        self.read: list[int] = []

    async def prepare(self, manifest: Manifest) -> None:
        if self.fault:
            self.fault = False
            raise OSError("no luck")
        self.read.append(len(manifest.after(self.shadow.version)))
        self.shadow.follow(manifest)

    async def freeze(self) -> None: ...

    async def receive(self, manifest: Manifest) -> None: ...

    async def commit(self, version: Version) -> None:
        assert self.shadow.version == version

    async def thaw(self) -> None: ...

    def serves(self, learner: Learner) -> bool:
        return all(torch.equal(self.shadow.tensors[name], tensor) for name, tensor in learner.tensors.items())


class Publisher:
    """A learner, engines, and what is between them."""

    def __init__(self, directory: Directory, **options: Any) -> None:
        self.learner = Learner()
        self.receivers = [Receiver("one"), Receiver("two")]
        self.directory = directory
        self.sync = FileWeightSync(lambda: self.receivers, directory, 10, **options)
        self.step = 0

    async def publish(self) -> PublishReport:
        self.step += 1
        report = await self.sync.publish(Version(0, self.step), self.learner)
        assert all(receiver.serves(self.learner) for receiver in self.receivers if receiver.name not in report.failed)
        return report

    @property
    def files(self) -> list[str]:
        filesystem, name = url_to_fs(str(self.directory.path))
        return sorted(os.path.basename(path) for path in filesystem.ls(name, detail=False))


@pytest.fixture(params=["directory", "url"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    if request.param == "directory":
        made: Directory = OwnedDirectory(tmp_path)
    else:
        made = RemoteDirectory(f"memory:/{tmp_path}", tmp_path)
    yield made
    made.close()


async def test_deltas_follow_all_tensors_until_a_chain_is_as_long_as_it_may_be(directory: Directory) -> None:
    publisher = Publisher(directory, deltas=True, keyframe_every=3)
    reports = [await publisher.publish() for _ in range(7)]
    dense = sum(tensor.nbytes for tensor in publisher.learner.tensors.values())
    assert [report.bytes < 0.2 * dense for report in reports] == [False, True, True, False, True, True, False]
    assert {report.dense_bytes for report in reports} == {dense}
    assert [order.base and order.base.step for order in publisher.learner.orders] == [None, 1, 2, None, 4, 5, None]
    assert publisher.files == ["weights-6.mapped"]


async def test_the_chain_before_stays_while_the_next_one_is_written_and_no_longer(directory: Directory) -> None:
    publisher = Publisher(directory, deltas=True, keyframe_every=2, dense="safetensors")
    for _ in range(4):
        await publisher.publish()
    first = ["weights-0.safetensors", "weights-1.delta"]
    assert publisher.learner.seen == [[], first[:1], first, ["weights-2.safetensors"]]
    assert publisher.files == ["weights-2.safetensors", "weights-3.delta"]


async def test_dense_publishing_sends_all_tensors_each_time(directory: Directory) -> None:
    publisher = Publisher(directory, dense="safetensors")
    for _ in range(3):
        report = await publisher.publish()
        assert report.bytes == report.dense_bytes
    assert [order.format for order in publisher.learner.orders] == ["safetensors"] * 3
    assert publisher.files == ["weights-2.safetensors"]


async def test_a_chain_that_outgrew_all_tensors_ends(directory: Directory) -> None:
    publisher = Publisher(directory, deltas=True, keyframe_every=100)
    publisher.learner.share = 0.2  # of far changes: two fifths of all bytes
    bases = []
    for _ in range(8):
        report = await publisher.publish()
        bases.append(publisher.learner.orders[-1].base is None)
        assert report.bytes / report.dense_bytes < 0.5 or bases[-1]
    assert bases == [True, False, False, False, True, False, False, False]


async def test_a_sender_that_falls_back_begins_a_chain(directory: Directory) -> None:
    publisher = Publisher(directory, deltas=True, keyframe_every=100)
    for share in (0.02, 0.02, 1.0, 0.02):
        publisher.learner.share = share
        await publisher.publish()
    publisher.learner.sender = Sender()  # as after a restart of the learner
    await publisher.publish()
    assert publisher.files == ["weights-4.mapped"]
    await publisher.publish()
    assert publisher.files == ["weights-4.mapped", "weights-5.delta"]


async def test_an_engine_that_missed_versions_or_comes_late_reads_what_it_needs(directory: Directory) -> None:
    publisher = Publisher(directory, deltas=True, keyframe_every=100)
    await publisher.publish()
    missing = publisher.receivers.pop()
    for _ in range(3):
        await publisher.publish()
    assert await publisher.sync.catch_up(missing) == Version(0, 4)
    assert missing.serves(publisher.learner) and missing.read == [1, 3]
    late = Receiver("late")
    await publisher.sync.catch_up(late)
    assert late.serves(publisher.learner) and late.read == [4]
    publisher.receivers += [missing, late]
    missing.fault = True
    report = await publisher.publish()
    assert list(report.failed) == ["two"]
    await publisher.publish()
    assert missing.serves(publisher.learner) and missing.read == [1, 3, 2]


async def test_files_of_an_update_that_reached_nobody_stay_until_the_next_one(directory: Directory) -> None:
    publisher = Publisher(directory)
    await publisher.publish()
    for receiver in publisher.receivers:
        receiver.fault = True
    with pytest.raises(PublishFailed):
        await publisher.publish()
    assert publisher.files == ["weights-0.mapped", "weights-1.mapped"]
    assert await publisher.sync.catch_up(publisher.receivers[0]) == Version(0, 2)
    await publisher.publish()
    assert publisher.learner.seen[-1] == ["weights-1.mapped"]
    assert publisher.files == ["weights-2.mapped"]


async def test_a_version_sent_again_is_sent_whole(directory: Directory) -> None:
    publisher = Publisher(directory, deltas=True, keyframe_every=100)
    publisher.learner.share = 0
    await publisher.publish()
    publisher.step -= 1
    await publisher.publish()
    assert publisher.files == ["weights-1.mapped"]
    await publisher.publish()
    assert publisher.files == ["weights-1.mapped", "weights-2.delta"]


@pytest.mark.parametrize("deltas", [False, True], ids=["dense", "delta"])
async def test_a_write_that_fails_leaves_the_chain_in_service(tmp_path: Path, deltas: bool) -> None:
    publisher = Publisher(OwnedDirectory(tmp_path), deltas=deltas, keyframe_every=100)
    await publisher.publish()
    await publisher.publish()
    before = publisher.files
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(PublishFailed, match=r"the learner: send of version 0\.3 failed: .*too large.*weights-2"):
            await publisher.publish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert publisher.files == before
    late = Receiver("late")
    assert await publisher.sync.catch_up(late) == Version(0, 2)
    await publisher.publish()
    assert await publisher.sync.catch_up(late) == Version(0, 4)
    assert late.serves(publisher.learner)
    publisher.sync.close()


async def test_what_nobody_waits_for_any_more_is_removed(directory: Directory) -> None:
    publisher = Publisher(directory)
    await publisher.publish()
    filesystem, name = url_to_fs(str(directory.path))
    filesystem.pipe_file(f"{name}/weights-late.mapped.77.part", b"of a send that was given up")
    await publisher.publish()
    assert publisher.files == ["weights-1.mapped"]


async def test_old_files_that_cannot_be_removed_fail_no_publish(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(directory)
    await publisher.publish()
    filesystem, name = url_to_fs(str(directory.path))
    filesystem.makedirs(f"{name}/not-a-file")
    with caplog.at_level(logging.WARNING):
        await publisher.publish()
    assert "are not removed" in caplog.text
    filesystem.rm(f"{name}/not-a-file", recursive=True)


def test_a_resumed_run_removes_what_it_left_at_a_url(tmp_path: Path) -> None:
    parent = f"memory:/{tmp_path}"
    killed = RemoteDirectory(parent, tmp_path / "run")
    other = RemoteDirectory(parent, tmp_path / "other")
    filesystem, name = url_to_fs(killed.path)
    filesystem.pipe_file(f"{name}/weights-0.safetensors", b"x")
    resumed = RemoteDirectory(parent, tmp_path / "run")
    assert resumed.path == killed.path != other.path
    assert filesystem.ls(name) == []
    resumed.close()
    assert filesystem.exists(url_to_fs(other.path)[1]) and not filesystem.exists(name)
