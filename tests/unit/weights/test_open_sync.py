"""Which back end carries the weights, and where its files lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from asyncopd.config.engine import EngineSection
from asyncopd.config.weights import WeightsSection
from asyncopd.errors import UserError
from asyncopd.records import SendOrder, Version, WeightFile
from asyncopd.seams import WeightSync
from asyncopd.tensors.sender import Sender
from asyncopd.weights.open import check_weights, choose, open_sync
from asyncopd.weights.protocol import PublishFailed

SERVERS = ["http://one:8000"]


def opened(tmp_path: Path, urls: list[str], weights_bytes: int = 100, **weights: Any) -> WeightSync:
    return open_sync(
        WeightsSection(**weights),
        EngineSection(use="vllm_server", urls=urls),
        lambda: [],
        run_directory=tmp_path,
        weights_bytes=weights_bytes,
        learner_timeout_s=10,
    )


class Orders:
    """A `WeightSource` that notes what it is asked for."""

    def __init__(self) -> None:
        self.order: SendOrder | None = None

    async def send(self, order: SendOrder) -> WeightFile:
        self.order = order
        raise OSError("never")


@pytest.mark.parametrize(
    ("weights", "urls", "chosen"),
    [
        ({}, [], "shm"),
        ({}, SERVERS, "disk"),
        ({"dir": "s3://bucket/weights"}, [], "disk"),
        ({"dir": "/tmp"}, [], "shm"),
        ({"use": "shm"}, SERVERS, "shm"),
        ({"use": "disk"}, [], "disk"),
        ({"use": "gloo"}, [], "gloo"),
        ({"use": "nccl"}, SERVERS, "nccl"),
    ],
)
def test_auto_maps_where_engines_are_started_here_and_passes_files_else(
    weights: dict[str, Any], urls: list[str], chosen: str
) -> None:
    assert choose(WeightsSection(**weights), EngineSection(use="vllm_server", urls=urls)) == chosen


@pytest.mark.parametrize(
    ("weights", "urls", "where", "form", "dense"),
    [
        ({}, [], "/dev/shm", "mapped", "mapped"),
        ({"weights_bytes": 2**60}, [], "{run}", "mapped", "mapped"),
        ({}, SERVERS, "{run}", "safetensors", "mapped"),
        ({"dir": "{run}/mine"}, [], "{run}/mine", "mapped", "mapped"),
        ({"dir": "{run}/mine", "encoding": "delta"}, SERVERS, "{run}/mine", "delta", "safetensors"),
        ({"dir": "memory://{run}/there"}, [], "memory://{run}/there", "safetensors", "mapped"),
        ({"encoding": "delta"}, [], "/dev/shm", "delta", "mapped"),
    ],
)
async def test_files_lie_where_configured_in_the_form_that_engines_there_read(
    tmp_path: Path, weights: dict[str, Any], urls: list[str], where: str, form: str, dense: str
) -> None:
    weights = {name: value.format(run=tmp_path) if isinstance(value, str) else value for name, value in weights.items()}
    sync, source = opened(tmp_path, urls, **weights), Orders()
    with pytest.raises(PublishFailed, match="never"):
        await sync.publish(Version(0, 1), source)
    sync.close()
    assert source.order is not None
    assert source.order.path.startswith(where.format(run=tmp_path) + "/asyncopd-weights-")
    assert (source.order.format, source.order.dense) == (form, dense)


async def test_keyframes_come_as_often_as_configured(tmp_path: Path) -> None:
    class Still:
        """Tensors that stay as they are; nobody receives them."""

        def __init__(self) -> None:
            self.sender = Sender()
            self.bases: list[int | None] = []

        async def send(self, order: SendOrder) -> WeightFile:
            self.bases.append(order.base and order.base.step)
            return self.sender.send(order, [("w", torch.zeros(3))])

    sync, source = opened(tmp_path, [], encoding="delta", keyframe_every=3), Still()
    for step in range(5):
        with pytest.raises(PublishFailed, match="no engine is left"):
            await sync.publish(Version(0, step), source)
    sync.close()
    assert source.bases == [None, 0, 1, None, 3]


@pytest.mark.parametrize("where", ["/proc/weights", "nowhere://bucket/weights"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, where: str) -> None:
    with pytest.raises(UserError, match=rf"^weights\.dir: {where} cannot be used .*; name one that can be written"):
        opened(tmp_path, [], dir=where)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"use": "shm", "dir": "s3://bucket"}, "shm cannot map files at s3://bucket"),
        ({"use": "gloo", "encoding": "delta"}, "gloo writes no files"),
        ({"use": "nccl", "dir": "/tmp"}, "nccl writes no files"),
        ({"use": "nccl", "lora": "adapter"}, "no place for an adapter"),
    ],
)
def test_what_does_not_fit_together_is_refused(weights: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        WeightsSection(**weights)


@pytest.mark.parametrize(
    ("weights", "engine", "why"),
    [
        ({"use": "gloo", "host": "203.0.113.1"}, "vllm", r"weights\.host 203\.0\.113\.1: nobody can listen there"),
        ({"use": "nccl"}, "torch", r"weights\.use nccl: the torch engine receives nothing by it; use gloo"),
        ({"use": "nccl"}, "vllm", r"weights\.use nccl: there is no NVIDIA GPU here; use gloo"),
    ],
)
def test_a_way_that_cannot_work_here_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, weights: dict[str, Any], engine: Any, why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=why):
        check_weights(WeightsSection(**weights), EngineSection(use=engine))
    check_weights(WeightsSection(use="gloo"), EngineSection(use=engine))
