"""Causal attention inside each segment of a packed row, for any Hugging Face model that takes an attention function.

A pack's segments are separate calls, so that no token sees another segment and no mask over the pack exists.
Shapes: H heads, G key and value heads, T tokens of the pack, D head size (or hidden size), V vocabulary.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from asyncopd.errors import UserError
from asyncopd.models.packing import pack

PACKED = "asyncopd_packed"
_REMEDY = "choose a model of another architecture"


# Lengths of the two sequences a model is tried with, and how far its logits may be off, as a share of the largest.
_TRIED = (6, 3)
_ROUNDING = 0.01
# How configurations call what models do to their logits.
_FIELDS = re.compile(r"soft_?cap|logits?_scal|lm_head_multiplier")


def use_packed_attention(model: PreTrainedModel, where: str) -> None:
    """Make `model` read its keyword argument `boundaries` (see `Pack`) as segment boundaries.

    Raises `UserError`, which names the configuration's field `where`, for a model whose attention cannot be
    replaced, and for one whose logits are not those of its head on hidden states so computed: caps and scales
    of logits, attention sinks and recurrent layers are not known here, and would be left out in silence.
    """
    sequences = [torch.arange(length, device=model.device) for length in _TRIED]
    with torch.no_grad():
        own_TV = torch.cat([model(input_ids=ids_T[None], use_cache=False).logits[0] for ids_T in sequences])
    model.set_attn_implementation(PACKED)
    if model.config._attn_implementation != PACKED:
        raise UserError(where, f"{type(model).__name__} does not let its attention be chosen", _REMEDY)
    row = pack(sequences)
    with torch.no_grad():
        hidden_1TD = model.base_model(
            input_ids=row.ids_T[None], position_ids=row.positions_T[None], boundaries=row.boundaries, use_cache=False
        ).last_hidden_state
        packed_TV = model.get_output_embeddings()(hidden_1TD)[0]
    if (packed_TV - own_TV).abs().max() > _ROUNDING * own_TV.abs().max():
        settings = model.config.get_text_config().to_dict()
        fields = ", ".join(f"{name} = {value}" for name, value in settings.items() if value and _FIELDS.search(name))
        reason = f"{type(model).__name__} needs more than causal attention and a linear head"
        raise UserError(where, f"{reason} ({fields or 'nothing in its configuration says what'})", _REMEDY)


def packed_attention(
    module: torch.nn.Module,
    query_1HTD: torch.Tensor,
    key_1GTD: torch.Tensor,
    value_1GTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    boundaries: Sequence[int],
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention outputs [1, T, H, D]; segment s is `boundaries[s]:boundaries[s + 1]`."""
    assert attention_mask is None, "packed attention builds its own masks"
    lengths = [stop - start for start, stop in itertools.pairwise(boundaries)]
    # Split, not sliced: each slice's gradient would be a tensor as long as the pack.
    segments = zip(*(states.split(lengths, dim=2) for states in (query_1HTD, key_1GTD, value_1GTD)), strict=True)
    outputs = []
    for query, key, value in segments:
        mask = _window_mask(query.shape[2], sliding_window, query.device)
        outputs.append(sdpa_attention_forward(module, query, key, value, mask, **options)[0])
    return torch.cat(outputs, dim=1), None


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Return the mask of a segment longer than its layer's sliding window; a shorter one needs none."""
    if window is None or length <= window:
        return None
    ones_LL = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones_LL.tril().triu(1 - window)[None, None]


AttentionInterface.register(PACKED, packed_attention)
