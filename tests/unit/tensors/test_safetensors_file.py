"""Checkpoints that a learner passes to engines, which any other program can read as well."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors import safe_open

from asyncopd.records import Version, WeightFile
from asyncopd.tensors.checkpoint import write_checkpoint
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.reader import open_weights

TENSORS = {
    "model.embed.weight": torch.randn(7, 5),
    "model.scale": torch.tensor(1.5),
    "model.norm.weight": torch.randn(3, dtype=torch.bfloat16),
    "model.transposed.weight": torch.randn(4, 6).T,
}


@pytest.fixture(params=["local", "memory"])
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> WeightFile:
    path = str(tmp_path / "weights.safetensors")
    if request.param == "memory":
        path = f"memory:/{path}"
    return write_checkpoint(path, Version(1, 7), TENSORS.items())


def edit(weights: WeightFile, data: bytes) -> None:
    with fsspec.open(weights.path, "wb") as file:
        file.write(data)


def bytes_of(weights: WeightFile) -> bytes:
    with fsspec.open(weights.path, "rb") as file:
        return file.read()


def test_tensors_come_back_bitwise_in_order(weights: WeightFile) -> None:
    found = dict(open_weights(weights))
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_the_library_reads_it(tmp_path: Path) -> None:
    written = write_checkpoint(str(tmp_path / "model.safetensors"), Version(0, 3), TENSORS.items())
    with safe_open(written.path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "version": "0.3"}
        assert set(file.keys()) == set(TENSORS)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in TENSORS.items())


def test_writing_to_a_view_changes_no_file(weights: WeightFile) -> None:
    dict(open_weights(weights))["model.embed.weight"].zero_()
    assert torch.equal(dict(open_weights(weights))["model.embed.weight"], TENSORS["model.embed.weight"])


def test_a_flipped_bit_of_any_tensor_is_refused(weights: WeightFile) -> None:
    data = bytes_of(weights)
    for entry in weights.tensors:
        for index in (entry.offset, entry.offset + entry.nbytes - 1):
            edit(weights, data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
            with pytest.raises(TornWeights, match="the checksum of the tensors"):
                open_weights(weights)


def test_a_damaged_header_is_refused(weights: WeightFile) -> None:
    data = bytes_of(weights)
    version = data.index(b'"1.7"')
    for damaged, what in [
        (data[:-1], "the size in bytes"),
        (data + b"x", "the size in bytes"),
        (data[:3], "the size in bytes"),
        (b"\xff" + data[1:], "the start of the first tensor"),
        (data[:8] + b"!" + data[9:], "the header is no JSON"),
        (data[:version] + b'"1.8"' + data[version + 5 :], "the version is 1.8, the manifest says 1.7"),
    ]:
        edit(weights, damaged)
        with pytest.raises(TornWeights, match=what):
            open_weights(weights)


def test_a_missing_file_is_refused(weights: WeightFile) -> None:
    filesystem, name = fsspec.url_to_fs(weights.path)
    filesystem.rm_file(name)
    with pytest.raises(TornWeights, match=r"version 1\.7 is gone"):
        open_weights(weights)


def test_a_dtype_that_cannot_be_published_is_named_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"w is torch\.float16"):
        write_checkpoint(str(tmp_path / "w"), Version(0, 0), [("w", torch.zeros(1, dtype=torch.float16))])
    assert os.listdir(tmp_path) == []
