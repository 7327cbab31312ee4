"""Draws that an engine's worker keeps by request: ordered with the request, collected when it has finished.

Invariants of the collector
- one call is under way at a time, and takes along all that were asked for while the last one was;
- what is collected or discarded is forgotten by the worker;
- a call that fails fails those who wait for it, and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncopd.records import Draws, DrawSpec, GenerateRequest, decode

_ARGUMENT = "asyncopd"


class Order(msgspec.Struct, frozen=True, array_like=True):
    """What a worker is told of a request, among `SamplingParams.extra_args`.

    `start` tokens of the turn were sampled elsewhere; draws of the one at position p from here on are seeded by
    `seed` and `start + p`.
    """

    key: str
    seed: int
    start: int
    head: int = 0
    tail: int = 0
    iid: int = 0

    @property
    def spec(self) -> DrawSpec:
        return DrawSpec(head=self.head, tail=self.tail, iid=self.iid)


def worker_spec(spec: DrawSpec) -> DrawSpec:
    """Return the part of `spec` that the worker keeps: vLLM returns a head by itself, but not one that a tail is
    drawn beyond, since of two equal tokens each might count another into it."""
    return spec if spec.tail else DrawSpec(iid=spec.iid)


def extra_args(request: GenerateRequest, key: str) -> dict[str, Any]:
    """Return what goes along with `request`, which its worker shall know by a `key` never used before."""
    spec = worker_spec(request.draws)
    start = len(request.resume_ids)
    order = Order(key, request.sampling.seed, start, spec.head, spec.tail, spec.iid)
    return {_ARGUMENT: msgspec.to_builtins(order)}


def order_of(extra_args: dict[str, Any] | None) -> Order | None:
    """Return the order among a request's extra arguments. Raises `msgspec.ValidationError` for one that is none."""
    value = (extra_args or {}).get(_ARGUMENT)
    return None if value is None else msgspec.convert(value, Order)


def unpacked(data: bytes) -> dict[str, Draws]:
    """Return the draws by key that a worker sent."""
    return decode(data, dict[str, Draws])


def completed(
    kept: Draws | None, wanted: DrawSpec, rows: int, heads: Draws | None = None
) -> tuple[Draws, np.ndarray | None]:
    """Return the draws of exactly `rows` tokens, and a 1 for each that has lost its own (None if none has).

    `kept` is what the worker had, `heads` what vLLM returned by itself. A worker may hold one row more, of a
    token sampled after the end was decided; or fewer, if it forgot a request that waited for long.
    """
    spec = worker_spec(wanted)
    held = Draws.lost(spec, 0) if kept is None else kept.rows(0, rows)
    undrawn_R = None
    if held.count < rows:
        undrawn_R = (np.arange(rows) >= held.count).astype(np.uint8)
        held = Draws.join([held, Draws.lost(spec, rows - held.count)])
    if heads is not None and not spec.head:
        held = msgspec.structs.replace(held, head_ids_RK=heads.head_ids_RK, head_logp_RK=heads.head_logp_RK)
    return held, undrawn_R


class Collector:
    """Collects draws through `fetch`, which is given keys and returns the bytes of those draws that it knows."""

    def __init__(self, fetch: Callable[[Sequence[str]], Awaitable[bytes]]) -> None:
        self._fetch = fetch
        self._keys: list[str] = []  # of the next call
        self._call: asyncio.Task[dict[str, Draws]] | None = None  # the next, or with no keys the last

    async def take(self, key: str) -> Draws | None:
        """Return the draws of a finished request, `None` if the worker knows none. Raises what `fetch` raises."""
        return (await asyncio.shield(self._ask(key))).get(key)

    def discard(self, key: str) -> None:
        """Have the worker forget a request that was given up."""
        self._ask(key)

    def close(self) -> None:
        """Stop; whoever waits is cancelled."""
        if self._call is not None:
            self._call.cancel()

    def _ask(self, key: str) -> asyncio.Task[dict[str, Draws]]:
        if self._call is None or not self._keys:
            self._call = asyncio.get_running_loop().create_task(self._collect(self._call), name="collect-draws")
            self._call.add_done_callback(_retrieve)
        self._keys.append(key)
        return self._call

    async def _collect(self, last: asyncio.Task[dict[str, Draws]] | None) -> dict[str, Draws]:
        if last is not None:
            await asyncio.wait({last})
        keys, self._keys = self._keys, []
        return unpacked(await self._fetch(keys))


def _retrieve(call: asyncio.Task[dict[str, Draws]]) -> None:
    if not call.cancelled():
        call.exception()  # known to those who waited, if any did
