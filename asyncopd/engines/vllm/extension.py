"""What asyncopd adds to vLLM's worker, for `collective_rpc` to call."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
from vllm.distributed.weight_transfer.base import WeightTransferEngine

from asyncopd.engines.draws import order_of
from asyncopd.engines.vllm.draws import DrawsProcessor
from asyncopd.engines.vllm.transfer import follower_of
from asyncopd.records import Manifest, encode


class Extension:
    """Mixed into the worker through `worker_extension_cls`; its methods read what the V1 model runner holds."""

    model_runner: Any
    weight_transfer_engine: WeightTransferEngine[Any, Any] | None

    def take_draws(self, keys: Sequence[str]) -> bytes:
        """Return the draws of those requests by key, encoded, and forget them; see `engines.draws.unpacked`."""
        processors = self.model_runner.input_batch.logitsprocs.argmax_invariant
        (processor,) = (processor for processor in processors if isinstance(processor, DrawsProcessor))
        return encode(processor.take(keys))

    def take_draws_text(self, *keys: str) -> str:
        """Return what `take_draws` does in base64, for HTTP, which passes text only."""
        return base64.b64encode(self.take_draws(keys)).decode()

    def progress(self) -> dict[str, int]:
        """Return, by key, how many tokens each unfinished request has, among them those being sampled now."""
        return {
            order.key: len(state.output_token_ids)
            for state in self.model_runner.requests.values()
            if (order := order_of(state.sampling_params.extra_args)) is not None
        }

    def prepare_weights(self, manifest: str) -> None:
        """Begin to prepare the weights of `manifest`, JSON, while generation goes on."""
        follower_of(self.weight_transfer_engine).prepare(msgspec.json.decode(manifest, type=Manifest))

    def weights_state(self) -> dict[str, Any]:
        """Return the `UpdateState` of this worker, as plain containers."""
        return msgspec.to_builtins(follower_of(self.weight_transfer_engine).state())
