"""A logits processor of vLLM that draws from each position's distribution and changes nothing.

vLLM calls it after the temperature and before top-k and top-p, so it is given the logits of μ for requests that
cut nothing, as those that want draws must. Batches that are all greedy pass it by.

Invariants
- row p of a request holds the draws of its output token p, also after preemption: a position that is sampled
  again is drawn again;
- the draws of a position depend on the request's seed, the position and μ only, not on the batch;
- a request is kept until it is taken, but of those outside the batch only the newest, so that what nobody asks
  for takes a bounded amount of memory.

Shapes: B requests of a batch, V vocabulary, R positions, N entries of a position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from asyncopd.engines.drawing import draw, uniforms
from asyncopd.engines.draws import Order, order_of
from asyncopd.engines.turn import token_seed
from asyncopd.records import Draws, DrawSpec

# Of requests outside the batch: preempted ones, and finished ones that will soon be asked for. It is reached only
# where a client died.
_KEPT_BYTES = 256 * 2**20

_FIRST_ROWS = 16


class DrawsProcessor(LogitsProcessor):
    """Draws for requests that bring an `Order`; `take` hands the draws out."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for draws from a distribution that is not the one sampled."""
        order = order_of(sampling_params.extra_args)
        whole = sampling_params.temperature > 0 and sampling_params.top_p == 1 and sampling_params.top_k <= 0
        if order is not None and order.spec.width and not whole:
            raise ValueError("draws are of a whole distribution: neither greedy, nor cut by top_p or top_k")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._limit = _KEPT_BYTES
        self._batch: dict[int, _Request] = {}
        self._kept: dict[str, _Request] = {}
        self._left: dict[str, None] = {}  # kept ones outside the batch, the newest last

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        before = [request.order.key for request in self._batch.values()]
        process_dict_updates(self._batch, batch_update, self._admit)
        present = {request.order.key for request in self._batch.values()}
        for key in present:
            self._left.pop(key, None)
        self._left |= dict.fromkeys(key for key in before if key not in present and key in self._kept)
        self._forget(sum(self._kept[key].nbytes for key in self._left) - self._limit)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows_of: dict[DrawSpec, list[int]] = {}
        for row in sorted(self._batch):
            rows_of.setdefault(self._batch[row].order.spec, []).append(row)
        for spec, rows in rows_of.items():
            self._draw(logits, spec, rows)
        return logits

    def take(self, keys: Iterable[str]) -> dict[str, Draws]:
        """Return the draws of those of `keys` that are kept, and forget them."""
        taken: dict[str, Draws] = {}
        for key in keys:
            request = self._kept.pop(key, None)
            self._left.pop(key, None)
            if request is not None:
                taken[key] = request.draws
        return taken

    def _forget(self, excess: int) -> None:
        """Drop requests outside the batch, the oldest first, until `excess` bytes are free."""
        while excess > 0:
            oldest = next(iter(self._left))
            excess -= self._kept[oldest].nbytes
            del self._left[oldest], self._kept[oldest]

    def _admit(self, params: SamplingParams, _: list[int] | None, output_ids: list[int]) -> _Request | None:
        order = order_of(params.extra_args)
        if order is None or not order.spec.width:
            return None
        request = self._kept.get(order.key) if output_ids else None
        if request is None:
            assert params.max_tokens is not None, "vLLM sets it where the client does not"
            request = self._kept[order.key] = _Request(order, params.max_tokens)
        request.output_ids = output_ids
        return request

    def _draw(self, logits_BV: torch.Tensor, spec: DrawSpec, rows: list[int]) -> None:
        requests = [self._batch[row] for row in rows]
        uniform_BM = torch.from_numpy(uniforms([request.seed for request in requests], spec.tail + spec.iid))
        chosen_BV = logits_BV if len(rows) == len(logits_BV) else logits_BV[rows]
        ids_BN, logp_BN = draw(chosen_BV, spec, uniform_BM.to(logits_BV.device))
        for request, ids_N, logp_N in zip(requests, ids_BN.cpu().numpy(), logp_BN.cpu().numpy(), strict=True):
            request.write(ids_N, logp_N)


class _Request:
    """The draws of one request so far; `output_ids` is vLLM's own growing list of the tokens it has."""

    output_ids: Sequence[int]

    def __init__(self, order: Order, max_tokens: int) -> None:
        self.order = order
        self._max_tokens = max_tokens
        self._ids_RN = np.empty((_FIRST_ROWS, order.spec.width), np.int32)
        self._logp_RN = np.empty((_FIRST_ROWS, order.spec.width), np.float32)
        self._count = 0

    @property
    def seed(self) -> int:
        return token_seed(self.order.seed, self.order.start + len(self.output_ids))

    @property
    def nbytes(self) -> int:
        return self._ids_RN.nbytes + self._logp_RN.nbytes

    @property
    def draws(self) -> Draws:
        return Draws.split(self.order.spec, self._ids_RN[: self._count], self._logp_RN[: self._count])

    def write(self, ids_N: np.ndarray, logp_N: np.ndarray) -> None:
        """Keep the draws of the token being sampled.

        Rows are kept from the first on without a gap: one forgotten while it was preempted stays incomplete. A
        token more than asked for may be sampled before vLLM notices.
        """
        position = len(self.output_ids)
        if position > self._count or position >= self._max_tokens:
            return
        if position == len(self._ids_RN):
            self._ids_RN, self._logp_RN = (
                np.concatenate([rows_RN, np.empty_like(rows_RN)]) for rows_RN in (self._ids_RN, self._logp_RN)
            )
        self._ids_RN[position], self._logp_RN[position] = ids_N, logp_N
        self._count = position + 1
