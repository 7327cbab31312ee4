"""Files of deltas: readable for ever, and refused where a single bit is not as it was written."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from asyncopd.records import Manifest, Version, WeightFile
from asyncopd.tensors.delta_file import read_delta, write_delta
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.mapped import write_tensors
from asyncopd.tensors.shadow import Shadow

GOLDEN = Path(__file__).parent / "golden"


def before() -> dict[str, torch.Tensor]:
    return {
        "far": torch.arange(140_000, dtype=torch.int32).to(torch.int16).view(torch.bfloat16),
        "near": torch.arange(1000, dtype=torch.float32),
        "same": torch.ones(3, 4, dtype=torch.bfloat16),
        "special": torch.tensor([0.0, -0.0, 1.0, float("inf"), 2.0], dtype=torch.bfloat16),
    }


def after() -> dict[str, torch.Tensor]:
    """What `before` may become: every tier of gaps and distances, both words, two blocks, a NaN with a payload."""
    tensors = before()
    far = tensors["far"].view(torch.int16)
    for position, distance in [(0, 1), (1, -1), (300, 2), (70_000, -130), (139_999, 40)]:
        far[position] += distance
    tensors["near"].view(torch.int32)[::50] += torch.arange(-9, 11, dtype=torch.int32) ** 5
    special = np.array([0x8000, 0x0000, 0x7FA5, 0xFF80, 0x0001], np.uint16)  # -0, 0, a NaN, -inf, the least above 0
    tensors["special"] = torch.from_numpy(special.view(np.int16)).view(torch.bfloat16)
    return tensors


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


@pytest.fixture
def chain(tmp_path: Path) -> Manifest:
    keyframe = write_tensors(tmp_path / "0.mapped", Version(2, 6), before().items())
    shadow = Shadow()
    shadow.take(Version(2, 6), before().items())
    delta = shadow.diff(Version(2, 7), after().items(), limit=10_000)
    assert delta is not None
    return Manifest(files=(keyframe, write_delta(str(tmp_path / "1.delta"), delta)))


def at(directory: Path, file: WeightFile) -> WeightFile:
    return msgspec.structs.replace(file, path=str(directory / Path(file.path).name))


def test_the_golden_file_is_read_as_ever(chain: Manifest) -> None:
    described = msgspec.json.decode((GOLDEN / "1.delta.json").read_bytes(), type=WeightFile)
    shadow = Shadow()
    shadow.follow(Manifest(files=(chain.files[0], at(GOLDEN, described))))
    assert bits(shadow.tensors) == bits(after())
    assert shadow.version == Version(2, 7)


def test_the_golden_file_is_written_as_ever(chain: Manifest) -> None:
    assert Path(chain.files[1].path).read_bytes() == (GOLDEN / "1.delta").read_bytes()
    described = msgspec.json.decode((GOLDEN / "1.delta.json").read_bytes(), type=WeightFile)
    assert at(GOLDEN, chain.files[1]) == at(GOLDEN, described)


def test_a_tensor_that_did_not_change_takes_no_room(chain: Manifest) -> None:
    assert [entry.name for entry in chain.files[1].tensors] == ["far", "near", "special"]


def test_a_flipped_bit_anywhere_is_refused_before_anything_changes(chain: Manifest) -> None:
    shadow = Shadow()
    shadow.follow(Manifest(files=chain.files[:1]))
    path = Path(chain.files[1].path)
    data = path.read_bytes()
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1 << index % 8]) + data[index + 1 :])
        with pytest.raises(TornWeights, match=r"1\.delta: .* is .*, the manifest says"):
            shadow.follow(chain)
    assert shadow.version == Version(2, 6)
    assert bits(shadow.tensors) == bits(before())
    path.write_bytes(data)
    shadow.follow(chain)
    assert bits(shadow.tensors) == bits(after())


@pytest.mark.parametrize("size", [0, 3, 47, 48, 100, -1])
def test_a_file_cut_short_is_refused(chain: Manifest, size: int) -> None:
    path = chain.files[1].path
    os.truncate(path, size if size >= 0 else os.path.getsize(path) - 1)
    with pytest.raises(TornWeights, match="the size in bytes is"):
        read_delta(chain.files[1])


def test_a_file_that_grew_or_is_gone_is_refused(chain: Manifest) -> None:
    with open(chain.files[1].path, "ab") as file:
        file.write(b"x")
    with pytest.raises(TornWeights, match="the size in bytes is"):
        read_delta(chain.files[1])
    os.unlink(chain.files[1].path)
    with pytest.raises(TornWeights, match=r"version 2\.7 is gone"):
        read_delta(chain.files[1])
