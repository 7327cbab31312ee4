"""What an engine is asked, and what it answers."""

from __future__ import annotations

import msgspec
import numpy as np

from asyncopd.records.draws import NO_DRAWS, Draws, DrawSpec
from asyncopd.records.version import Version


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample: softmax(logits / temperature), at most `max_tokens`, stopping after any of `stop_ids`.

    The distribution is cut to the `top_k` likeliest tokens (0 keeps all), then to the fewest that hold `top_p`
    of what is left; log μ is that of the distribution so cut.
    """

    temperature: float
    max_tokens: int
    seed: int
    stop_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant turn to sample.

    `prompt_ids` are all tokens before the turn. `resume_ids` are tokens of this very turn sampled
    earlier, on an engine that was lost. `min_version` is the oldest version that may serve it, and `engine` the
    one that should, where there are several.
    """

    request_id: str
    trajectory_id: str
    prompt_ids: list[int]
    sampling: Sampling
    min_version: Version
    deadline: float
    resume_ids: list[int] = []
    engine: str | None = None
    draws: DrawSpec = NO_DRAWS


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine sampled, R tokens in order; `stop_reason` is `stop`, `length` or `aborted`.

    ids_R int32, logp_R float32 (log μ at the sampling temperature), version_R int64 packed,
    mixed_kv_R uint8 (1 where part of the context was computed at another version than the token's), undrawn_R
    uint8 (1 where the draws asked for were lost with an engine, so that the token can teach nothing).
    """

    ids_R: np.ndarray
    logp_R: np.ndarray
    version_R: np.ndarray
    mixed_kv_R: np.ndarray
    stop_reason: str
    draws: Draws | None = None
    undrawn_R: np.ndarray | None = None


class EngineCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do: `draws` it can return, whether equal requests give equal tokens."""

    draws: DrawSpec
    max_context: int
    deterministic: bool
