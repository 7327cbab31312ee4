"""Causal attention inside each segment of a packed row, for any Hugging Face model that takes an attention function.

A pack's segments are separate calls, so that no token sees another segment and no mask over the pack exists.
Shapes: H heads, G key and value heads, T tokens of the pack, D head size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from asyncopd.errors import UserError

PACKED = "asyncopd_packed"


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make `model` read its keyword argument `boundaries` (see `Pack`) as segment boundaries.

    Raises `UserError` for a model whose attention cannot be replaced.
    """
    model.set_attn_implementation(PACKED)
    if model.config._attn_implementation != PACKED:
        raise UserError(
            "student.model", f"{type(model).__name__} does not let its attention be chosen", "use another architecture"
        )


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
