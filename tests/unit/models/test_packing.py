"""Packing several sequences in a row changes nothing but speed."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from asyncopd.errors import UserError
from asyncopd.models.attention import use_packed_attention
from asyncopd.models.packing import balanced_groups, pack

LENGTHS = (7, 1, 30, 12)
SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    initializer_range=0.2,
)


def qwen() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))


def mistral() -> PreTrainedModel:
    """A model whose window of attention is shorter than some sequences."""
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=5, attn_implementation="sdpa"))


def sequences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(64, (length,), generator=generator) for length in LENGTHS]


def alone_hidden(model: PreTrainedModel, ids_T: torch.Tensor) -> torch.Tensor:
    return model.base_model(input_ids=ids_T[None], use_cache=False).last_hidden_state[0]


def packed_hidden(model: PreTrainedModel) -> torch.Tensor:
    row = pack(sequences())
    return model.base_model(
        input_ids=row.ids_T[None], position_ids=row.positions_T[None], boundaries=row.boundaries, use_cache=False
    ).last_hidden_state[0]


@pytest.mark.parametrize("build", [qwen, mistral])
def test_packed_equals_alone_in_value_and_gradient(build):
    torch.manual_seed(0)
    model = build().eval()
    alone = torch.cat([alone_hidden(model, ids) for ids in sequences()])
    probe = torch.randn_like(alone)
    (alone * probe).sum().backward()
    expected = {name: parameter.grad for name, parameter in model.base_model.named_parameters()}
    model.zero_grad()
    use_packed_attention(model, "student.model")
    packed = packed_hidden(model)
    (packed * probe).sum().backward()
    assert torch.allclose(packed, alone, atol=1e-5)
    for name, parameter in model.base_model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-5 * expected[name].abs().max()), name


class Masks(TorchDispatchMode):
    """Remembers the longest side of a square tensor."""

    side = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2]:
                self.side = max(self.side, tensor.shape[-1])
        return result


def test_no_mask_over_the_pack_exists():
    model = mistral().eval()
    use_packed_attention(model, "student.model")
    with Masks() as masks:
        packed_hidden(model)
    assert 0 < masks.side < sum(LENGTHS)


def test_a_model_whose_attention_is_fixed_is_refused(monkeypatch):
    model = qwen()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(UserError, match="Qwen3ForCausalLM"):
        use_packed_attention(model, "student.model")


def cohere() -> PreTrainedModel:
    return CohereForCausalLM(CohereConfig(**SHAPE | {"head_dim": 8}, eos_token_id=1))


def gemma() -> PreTrainedModel:
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, final_logit_softcapping=1.0))


def recurrent() -> PreTrainedModel:
    """A model whose layers carry a state from each token to the next, and so from each sequence to the next."""
    return Lfm2ForCausalLM(Lfm2Config(**SHAPE | {"head_dim": 8}, layer_types=["conv", "full_attention"]))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (cohere, "CohereForCausalLM .*logit_scale = 0.0625"),
        (gemma, "Gemma2ForCausalLM .*final_logit_softcapping = 1.0"),
        (recurrent, "Lfm2ForCausalLM "),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(build, said):
    torch.manual_seed(0)
    with pytest.raises(UserError, match=f"^teacher.model: {said}.*choose a model"):
        use_packed_attention(build().eval(), "teacher.model")


def test_positions_start_again_in_each_sequence():
    row = pack([torch.tensor([5, 6]), torch.tensor([7]), torch.tensor([8, 9, 10])])
    assert row.ids_T.tolist() == [5, 6, 7, 8, 9, 10]
    assert row.positions_T.tolist() == [0, 1, 0, 0, 1, 2]
    assert row.boundaries == (0, 2, 3, 6)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 100))
def test_groups_hold_each_sequence_once_within_the_budget(lengths, budget):
    groups = balanced_groups(lengths, budget)
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or sum(lengths[index] for index in group) <= budget


def test_groups_are_balanced():
    groups = balanced_groups([10] * 9, 40)
    assert sorted(len(group) for group in groups) == [3, 3, 3]
