"""What engines agree on about one turn: how many tokens are left, and which seed samples a token."""

from __future__ import annotations

import struct

import numpy as np
import xxhash

from asyncopd.records import DrawSpec, EngineCapabilities, GenerateRequest, Generation

_PAIR = struct.Struct("<QQ")


def tokens_left(request: GenerateRequest, capabilities: EngineCapabilities) -> int:
    """Return how many tokens the turn may still get; 0 if `resume_ids` already end it.

    Raises `ValueError` for a prompt that fills the context, and for draws that the engine cannot give.
    """
    _require_draws(request, capabilities.draws)
    room = capabilities.max_context - len(request.prompt_ids)
    if room <= 0:
        raise ValueError(
            f"request {request.request_id}: a prompt of {len(request.prompt_ids)} tokens leaves no room in "
            f"engine.max_context = {capabilities.max_context}"
        )
    resumed = request.resume_ids
    if resumed and resumed[-1] in request.sampling.stop_ids:
        return 0
    return max(0, min(request.sampling.max_tokens, room) - len(resumed))


def _require_draws(request: GenerateRequest, offered: DrawSpec) -> None:
    wanted, sampling = request.draws, request.sampling
    if not offered.covers(wanted):
        raise ValueError(f"request {request.request_id} wants {wanted}; the engine was started for {offered}")
    if wanted.tail + wanted.iid and (sampling.temperature == 0 or sampling.top_p < 1 or sampling.top_k):
        raise ValueError(
            f"request {request.request_id} wants {wanted} of {sampling}: draws are of a whole distribution, so "
            "sampling has a temperature above 0, and neither top_p nor top_k"
        )


def token_seed(seed: int, position: int) -> int:
    """Return a seed in [0, 2^63) for the turn's token at `position`, so that a resumed turn draws afresh."""
    return xxhash.xxh3_64_intdigest(_PAIR.pack(seed % 2**64, position)) >> 1


def ended_turn(request: GenerateRequest) -> Generation:
    """Return the generation of a turn that `resume_ids` already end: no tokens."""
    stopped = request.resume_ids[-1] in request.sampling.stop_ids
    return Generation(
        ids_R=np.empty(0, np.int32),
        logp_R=np.empty(0, np.float32),
        version_R=np.empty(0, np.int64),
        mixed_kv_R=np.empty(0, np.uint8),
        stop_reason="stop" if stopped else "length",
    )
