"""Seeds of episodes and turns: a function of what is sampled, never of when."""

from __future__ import annotations

import msgspec
import xxhash

_POSITIVE_INT64 = 2**63 - 1


def turn_seed(run_seed: int, task: str, sample: int, turn: int) -> int:
    """Return the seed of one assistant turn, in [0, 2**63); equal arguments give equal seeds everywhere."""
    key = msgspec.msgpack.encode(("turn", run_seed, task, sample, turn))
    return xxhash.xxh3_64_intdigest(key) & _POSITIVE_INT64


def episode_seed(run_seed: int, task: str, sample: int) -> int:
    """Return the seed of an episode's environment, in [0, 2**63)."""
    key = msgspec.msgpack.encode(("episode", run_seed, task, sample))
    return xxhash.xxh3_64_intdigest(key) & _POSITIVE_INT64
