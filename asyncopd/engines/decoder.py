"""Batched sampling from a Hugging Face model: rows join, get a token a step, and leave.

A row's token at a position is the inverse of its distribution's cumulative sum at a number that depends on
the row's seed and that position only. So what a row samples does not depend on its neighbours, beyond the
rounding of a batched matrix product; alone in the batch, it is bitwise reproducible.

Shapes: B rows, N joining rows, L cached positions (padded on the left), V vocabulary, R sampled tokens, W draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from asyncopd.engines.drawing import draw, uniforms
from asyncopd.engines.turn import token_seed
from asyncopd.records import Draws, DrawSpec, Sampling


@dataclass(eq=False)
class Row:
    """A turn being sampled: `context_ids` (prompt and resumed tokens), then `ids`, `count` of them at most."""

    context_ids: list[int]
    resumed: int
    count: int
    draws: DrawSpec
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    drawn_ids: list[torch.Tensor] = field(default_factory=list)
    drawn_logp: list[torch.Tensor] = field(default_factory=list)
    stop_reason: str | None = None

    @property
    def seed(self) -> int:
        """The seed of the next token."""
        return token_seed(self.sampling.seed, self.resumed + len(self.ids))

    @property
    def drawn(self) -> Draws | None:
        """The draws of the tokens so far, `None` where none were asked for."""
        if not self.draws.width:
            return None
        ids_RW, logp_RW = torch.cat(self.drawn_ids).int(), torch.cat(self.drawn_logp).float()
        return Draws.split(self.draws, ids_RW.numpy(), logp_RW.numpy())

    def append(self, token: int, logp_V: torch.Tensor) -> None:
        """Add a sampled token, and the draws of its position; `logp_V` is log μ there."""
        if self.draws.width:
            uniform_1M = torch.from_numpy(uniforms([self.seed], self.draws.tail + self.draws.iid))
            ids_1W, logp_1W = draw(logp_V[None], self.draws, uniform_1M)
            self.drawn_ids.append(ids_1W)
            self.drawn_logp.append(logp_1W)
        self.ids.append(token)
        self.logp.append(logp_V[token].item())
        if token in self.sampling.stop_ids:
            self.stop_reason = "stop"
        elif len(self.ids) == self.count:
            self.stop_reason = "length"


class Decoder:
    """Holds the keys and values of the rows being sampled. Not thread-safe."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._rows: list[Row] = []
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._mask_BL = torch.empty(0, 0, dtype=torch.long)

    @torch.inference_mode()
    def step(self, joining: Sequence[Row], leaving: Sequence[Row]) -> list[Row]:
        """Drop `leaving`; then give the first token to `joining`, or the next one to all; return finished rows."""
        self._keep([row not in leaving for row in self._rows])
        if joining:
            self._join(list(joining))
        elif self._rows:
            self._advance()
        finished = [row for row in self._rows if row.stop_reason]
        self._keep([row.stop_reason is None for row in self._rows])
        return finished

    def _advance(self) -> None:
        self._mask_BL = torch.nn.functional.pad(self._mask_BL, (0, 1), value=1)
        last_B1 = torch.tensor([[row.ids[-1]] for row in self._rows])
        logits_BV, self._layers = self._forward(last_B1, self._mask_BL, DynamicCache(self._layers))
        _sample(self._rows, logits_BV)

    def _join(self, rows: list[Row]) -> None:
        length = max(len(row.context_ids) for row in rows)
        ids_NL = torch.zeros(len(rows), length, dtype=torch.long)
        mask_NL = torch.zeros_like(ids_NL)
        for ids_L, mask_L, row in zip(ids_NL, mask_NL, rows, strict=True):
            ids_L[length - len(row.context_ids) :] = torch.tensor(row.context_ids)
            mask_L[length - len(row.context_ids) :] = 1
        logits_NV, layers = self._forward(ids_NL, mask_NL, DynamicCache())
        _sample(rows, logits_NV)
        if self._rows:
            layers = [
                (_stack(old_key, key), _stack(old_value, value))
                for (old_key, old_value), (key, value) in zip(self._layers, layers, strict=True)
            ]
            mask_NL = _stack(self._mask_BL[..., None], mask_NL[..., None])[..., 0]
        self._rows += rows
        self._layers = layers
        self._mask_BL = mask_NL

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        return output.logits[:, -1].double(), [_keys_and_values(layer) for layer in cache.layers]

    def _keep(self, kept: list[bool]) -> None:
        if all(kept):
            return
        chosen = torch.tensor([index for index, keep in enumerate(kept) if keep], dtype=torch.long)
        self._rows = [self._rows[index] for index in chosen]
        self._mask_BL = self._mask_BL[chosen]
        padding = int(self._mask_BL.any(dim=0).int().argmax()) if self._rows else 0
        self._mask_BL = self._mask_BL[:, padding:]
        self._layers = [(key[chosen][:, :, padding:], value[chosen][:, :, padding:]) for key, value in self._layers]


def _keys_and_values(layer: object) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        raise TypeError(f"the torch engine serves models of full attention only, not a {type(layer).__name__}")
    return layer.keys, layer.values


def _stack(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """Concatenate two batches whose next-to-last dimension is L, padding the shorter on the left."""
    length = max(above.shape[-2], below.shape[-2])
    return torch.cat([torch.nn.functional.pad(part, (0, 0, length - part.shape[-2], 0)) for part in (above, below)])


def _sample(rows: list[Row], logits_BV: torch.Tensor) -> None:
    """Append a token to each row; temperature 0 takes the likeliest, with log-probs of temperature 1."""
    for row, logits_V in zip(rows, logits_BV, strict=True):
        logp_V = _distribution(logits_V, row.sampling)
        if row.sampling.temperature == 0:
            token = int(logp_V.argmax())
        else:
            cdf_V = logp_V.exp().cumsum(dim=-1)
            uniform = row.seed / 2**63
            token = int(torch.searchsorted(cdf_V, cdf_V[-1:] * uniform, right=True).clamp(max=len(cdf_V) - 1))
        row.append(token, logp_V)


def _distribution(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return log μ: after the temperature `top_k` cuts, then `top_p`, as vLLM does."""
    logits_V = logits_V / (sampling.temperature or 1.0)
    if 0 < sampling.top_k < len(logits_V):
        least = logits_V.topk(sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, -torch.inf)
    if sampling.top_p < 1:
        falling = logits_V.softmax(dim=-1).sort(descending=True, stable=True)
        above_V = falling.values.cumsum(dim=-1) - falling.values
        logits_V = logits_V.index_fill(0, falling.indices[above_V >= sampling.top_p], -torch.inf)
    return torch.log_softmax(logits_V, dim=-1)
