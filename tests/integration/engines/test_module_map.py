"""Which tensors are brought in together, for models that say how they fuse and for those that do not."""

from __future__ import annotations

import pytest
import torch
from vllm.model_executor.models.interfaces import SupportsLoRA

from asyncopd.engines.vllm.modules import ModuleMap

pytestmark = pytest.mark.integration

BLOCK = [f"block.attention.{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "norm")]
EXPERTS = [f"block.experts.{expert}.{part}.weight" for expert in range(3) for part in ("gate", "up", "down")]
NAMES = ["embed.weight", *BLOCK, *EXPERTS, "head.weight"]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj, self.norm = (torch.nn.Linear(2, 2) for _ in range(3))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.experts = torch.nn.Linear(2, 2)  # all experts in one module, as vLLM has them


class Silent(torch.nn.Module):
    """Does not say what it fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = torch.nn.Embedding(2, 2), Block(), torch.nn.Linear(2, 2)


class Telling(Silent, SupportsLoRA):
    """Says it."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}


def test_a_part_of_a_fused_module_brings_the_other_parts() -> None:
    modules = ModuleMap(Telling(), NAMES)
    assert modules.complete(["block.attention.k_proj.weight"]) == BLOCK[:3]
    assert modules.complete(["block.attention.o_proj.weight"]) == [BLOCK[3]]
    assert modules.paths(["block.attention.k_proj.weight"]) == ["block.attention.qkv_proj"]


def test_where_the_fused_module_is_unknown_the_one_around_it_is_filled_whole() -> None:
    modules = ModuleMap(Silent(), NAMES)
    assert modules.complete(["block.attention.k_proj.weight"]) == BLOCK
    assert modules.complete(["block.attention.norm.weight"]) == [BLOCK[4]]


def test_an_expert_brings_all_experts() -> None:
    assert ModuleMap(Telling(), NAMES).complete(["block.experts.1.up.weight"]) == EXPERTS


def test_a_tensor_that_lies_nowhere_brings_all() -> None:
    modules = ModuleMap(Telling(), [*NAMES, "language_model.rest.weight"])
    assert modules.complete(["language_model.rest.weight"]) == [*NAMES, "language_model.rest.weight"]


def test_nothing_brings_nothing() -> None:
    assert ModuleMap(Telling(), NAMES).complete([]) == []
