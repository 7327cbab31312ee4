"""Adapters as they travel, and what an engine makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.adapters import ENDS, adapted_model, make_adapter
from support.tiny_models import make_model, save_checkpoint

from asyncopd.tensors.adapter import BASE, Merged, WrongBase, base_digest, is_adapter, merge
from asyncopd.tensors.base import CheckpointTensors
from asyncopd.tensors.received import Received, weights_of

QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model():
    return make_model(0, tied=True)


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory: pytest.TempPathFactory) -> CheckpointTensors:
    directory: Path = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(model, directory)
    return CheckpointTensors(directory)


def test_a_checkpoint_gives_its_tensors(checkpoint, model):
    expected = dict(model.named_parameters())
    assert set(checkpoint) == set(expected)
    assert len(checkpoint) == len(expected)
    assert all(torch.equal(checkpoint[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_adds_the_product_and_rounds_once(dtype: torch.dtype):
    torch.manual_seed(0)
    base_OI, down_RI, up_OR = torch.randn(9, 7).to(dtype), torch.randn(3, 7), torch.randn(9, 3)
    exact_OI = base_OI.double() + up_OR.double() @ down_RI.double()
    merged_OI = merge(base_OI, down_RI, up_OR)
    assert merged_OI.dtype == dtype
    torch.testing.assert_close(merged_OI.double(), exact_OI, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_all_weights_are_there_and_those_adapted_are_merged(checkpoint, model):
    adapter = make_adapter(model, seed=1)
    merged = Merged(checkpoint, adapter, torch.float32)
    for name, tensor in adapted_model(model, adapter).named_parameters():
        assert torch.equal(merged[name], tensor), name
    assert len(merged) == len(checkpoint)


def test_a_digest_tells_bases_apart():
    weights = {"b": torch.ones(3), "a": torch.zeros(2)}
    digest = base_digest(weights)
    assert digest.dtype == torch.float32 and digest.min() >= 0 and digest.max() < 2**16
    assert torch.equal(digest, digest.round())
    assert torch.equal(digest, base_digest(dict(reversed(weights.items()))))
    weights["a"][1] = 1e-30
    assert not torch.equal(digest, base_digest(weights))


def without(adapter: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in adapter.items() if key != name}


def test_an_adapter_of_other_weights_is_refused(checkpoint, model):
    adapter = make_adapter(model, seed=1)
    with pytest.raises(WrongBase, match=r"q_proj\.weight has no weight .* or one matrix only"):
        Merged(checkpoint, without(adapter, f"{QUERY}.lora_A.weight"), torch.float32)
    with pytest.raises(WrongBase, match=r"adapter of model\.other\.weight has no weight"):
        other = {f"model.other.lora_{side}.weight": torch.ones(1, 1) for side in "AB"}
        Merged(checkpoint, adapter | other, torch.float32)
    with pytest.raises(WrongBase, match=r"changes .*q_proj\.weight as \(128, 63\), .* has it as \(128, 64\)"):
        narrow = adapter[f"{QUERY}.lora_A.weight"][:, :63]
        Merged(checkpoint, adapter | {f"{QUERY}.lora_A.weight": narrow}, torch.float32)
    with pytest.raises(WrongBase, match="was trained on other weights"):
        Received(checkpoint, torch.float32).weights(make_adapter(make_model(1, tied=True), seed=1))
    with pytest.raises(WrongBase, match="was trained on other weights"):  # served in another dtype than trained for
        Received(checkpoint, torch.bfloat16).weights(adapter)


def test_whole_weights_pass_as_they_are(checkpoint):
    whole = {name: tensor.detach() for name, tensor in make_model(1, tied=True).named_parameters()}
    assert not is_adapter(whole)
    assert Received(checkpoint, torch.float32).weights(whole) is whole
    assert weights_of(whole, ["model.norm.weight"]) == ["model.norm.weight"]


def test_the_weights_that_a_matrix_changes_are_named(model):
    adapter = make_adapter(model, seed=1)
    assert is_adapter(adapter)
    assert weights_of(adapter, [f"{QUERY}.lora_B.weight", BASE]) == [f"{QUERY}.weight"]
    assert set(weights_of(adapter, adapter)) == {n for n, _ in model.named_parameters() if n.endswith(ENDS)}
