"""Drawing tokens from logits: the likeliest, the tail beyond them, and independently.

A draw inverts the cumulative sum of the distribution at a number in [0, 1), in two levels: first the block of
the vocabulary, then the token in it. So only the blocks that are hit are summed up token by token; the likeliest
tokens are looked for in the blocks with the likeliest ones alone. A token of no probability is never drawn.

Shapes: B positions, V vocabulary, P the same padded to whole blocks, J blocks, S tokens of a block, K head
entries, M draws, N entries of all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from asyncopd.records import DrawSpec

_BLOCK = 128


def draw(logits_BV: torch.Tensor, spec: DrawSpec, uniform_BM: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids int64 and log-probabilities [B, N], head, tail and i.i.d. side by side.

    `logits_BV` (float32 or wider, left as they are) are those of μ, whose logarithm is returned. Draws take
    the numbers `uniform_BM` (float64, in [0, 1)) in order, tail first. A tail without probability gives the
    head's first id with log-probability -inf.
    """
    normaliser_B1 = logits_BV.logsumexp(dim=-1, keepdim=True)
    mass_BP = _mass(logits_BV, normaliser_B1)
    iid_BM, _ = _invert(mass_BP, uniform_BM[:, spec.tail :])
    head_BK = _likeliest(logits_BV, mass_BP, spec.head)
    tail_BM, total_B1 = _invert(mass_BP.scatter_(1, head_BK, 0), uniform_BM[:, : spec.tail])
    if spec.head:
        tail_BM = torch.where(total_B1 > 0, tail_BM, head_BK[:, :1])
    ids_BN = torch.cat([head_BK, tail_BM, iid_BM], dim=1)
    logp_BN = logits_BV.gather(1, ids_BN) - normaliser_B1
    logp_BN[:, spec.head : spec.head + spec.tail].masked_fill_(total_B1 <= 0, -torch.inf)
    return ids_BN, logp_BN


def uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """Return `count` numbers in [0, 1) for each seed, float64 [B, count]: SplitMix64 (Steele et al. 2014)."""
    steps_M = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state_BM = np.array(seeds, np.uint64)[:, None] + steps_M
    state_BM = (state_BM ^ (state_BM >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state_BM = (state_BM ^ (state_BM >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state_BM ^ (state_BM >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _mass(logits_BV: torch.Tensor, normaliser_B1: torch.Tensor) -> torch.Tensor:
    """Return probabilities, padded with zeros to whole blocks."""
    positions, vocabulary = logits_BV.shape
    mass_BP = logits_BV.new_zeros(positions, -(-vocabulary // _BLOCK) * _BLOCK)
    mass_BV = mass_BP[:, :vocabulary]
    torch.sub(logits_BV, normaliser_B1, out=mass_BV)
    mass_BV.exp_()
    return mass_BP


def _likeliest(logits_BV: torch.Tensor, mass_BP: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the `count` likeliest tokens, falling."""
    greatest_BJ = mass_BP.unflatten(1, (-1, _BLOCK)).amax(dim=-1)
    block_BJ = greatest_BJ.topk(min(count, greatest_BJ.shape[1]), dim=-1).indices
    ids_BP = (block_BJ[..., None] * _BLOCK + torch.arange(_BLOCK, device=block_BJ.device)).flatten(1)
    last = logits_BV.shape[1] - 1
    value_BP = logits_BV.gather(1, ids_BP.clamp(max=last)).clamp_(min=torch.finfo(logits_BV.dtype).min)
    value_BP.masked_fill_(ids_BP > last, -torch.inf)  # below any token, also one of no probability
    return ids_BP.gather(1, value_BP.topk(count, dim=-1).indices)


def _invert(mass_BP: torch.Tensor, uniform_BM: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token at each share of the total mass, and that total; no shares cost nothing."""
    if not uniform_BM.shape[1]:
        return uniform_BM.long(), torch.ones_like(mass_BP[:, :1])
    mass_BJS = mass_BP.unflatten(1, (-1, _BLOCK))
    cumulative_BJ = mass_BJS.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total_B1 = cumulative_BJ[:, -1:]
    target_BM = uniform_BM * total_B1
    block_BM = _first_above(cumulative_BJ, target_BM)
    before_BM = torch.nn.functional.pad(cumulative_BJ, (1, 0)).gather(1, block_BM)
    rows_B1 = torch.arange(len(mass_BP), device=mass_BP.device)[:, None]
    within_BMS = mass_BJS[rows_B1, block_BM].cumsum(dim=-1, dtype=torch.float64)
    offset_BM = _first_above(within_BMS, (target_BM - before_BM)[..., None])[..., 0]
    return block_BM * _BLOCK + offset_BM, total_B1


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the first index whose sum exceeds each target, which rounding may have put at the total itself."""
    last = cumulative[..., -1:]
    below = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(cumulative, below, right=True).clamp_(max=cumulative.shape[-1] - 1)
