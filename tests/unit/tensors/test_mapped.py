from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import torch

from asyncopd.records import Version, WeightFile
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.mapped import map_tensors, write_tensors

TENSORS = {
    "model.embed.weight": torch.randn(7, 5),
    "model.scale": torch.tensor(1.5),
    "model.norm.weight": torch.randn(3, dtype=torch.bfloat16),
    "model.transposed.weight": torch.randn(4, 6).T,
}


@pytest.fixture
def weights(tmp_path: Path) -> WeightFile:
    return write_tensors(str(tmp_path / "weights"), Version(1, 7), TENSORS.items())


def test_tensors_come_back_bitwise_in_order(weights: WeightFile) -> None:
    found = dict(map_tensors(weights))
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert weights.version == Version(1, 7)


def test_what_is_said_of_a_file_survives_message_pack(weights: WeightFile) -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(weights), type=WeightFile)
    assert again == weights
    assert [name for name, _ in map_tensors(again)] == list(TENSORS)


def test_a_mapping_outlives_the_next_file_of_its_name(weights: WeightFile) -> None:
    old = dict(map_tensors(weights))
    write_tensors(weights.path, Version(1, 8), ((name, tensor + 1) for name, tensor in TENSORS.items()))
    assert torch.equal(old["model.embed.weight"], TENSORS["model.embed.weight"])
    os.unlink(weights.path)
    assert torch.equal(old["model.norm.weight"], TENSORS["model.norm.weight"])


def test_writing_to_a_view_changes_no_file(weights: WeightFile) -> None:
    dict(map_tensors(weights))["model.embed.weight"].zero_()
    assert torch.equal(dict(map_tensors(weights))["model.embed.weight"], TENSORS["model.embed.weight"])


@pytest.mark.parametrize("which", range(len(TENSORS)))
def test_one_flipped_bit_in_any_tensor_is_refused(weights: WeightFile, which: int) -> None:
    data = bytearray(Path(weights.path).read_bytes())
    data[weights.tensors[which].offset] ^= 1
    Path(weights.path).write_bytes(data)
    with pytest.raises(TornWeights, match=r"weights: the checksum of the tensors"):
        map_tensors(weights)


def test_a_short_file_is_refused(weights: WeightFile) -> None:
    os.truncate(weights.path, os.path.getsize(weights.path) - 1)
    with pytest.raises(TornWeights, match="size in bytes"):
        map_tensors(weights)
    os.truncate(weights.path, 3)
    with pytest.raises(TornWeights, match="the size in bytes is 3"):
        map_tensors(weights)


def test_the_file_of_another_version_is_refused(weights: WeightFile) -> None:
    write_tensors(weights.path, Version(1, 8), TENSORS.items())
    with pytest.raises(TornWeights, match=r"the version is 1\.8, the manifest says 1\.7"):
        map_tensors(weights)


def test_a_missing_file_is_refused(weights: WeightFile) -> None:
    os.unlink(weights.path)
    with pytest.raises(TornWeights, match=r"version 1\.7 is gone"):
        map_tensors(weights)


def test_a_failed_write_leaves_the_old_file_and_no_litter(weights: WeightFile) -> None:
    def failing():
        yield "model.embed.weight", torch.randn(1000)
        raise RuntimeError("the learner died")

    with pytest.raises(RuntimeError, match="the learner died"):
        write_tensors(weights.path, Version(1, 8), failing())
    with pytest.raises(ValueError, match="float16"):
        write_tensors(weights.path, Version(1, 8), [("w", torch.zeros(1, dtype=torch.float16))])
    assert torch.equal(dict(map_tensors(weights))["model.scale"], TENSORS["model.scale"])
    assert os.listdir(Path(weights.path).parent) == ["weights"]
