"""What a request looks like to a server."""

from __future__ import annotations

from typing import Any

from asyncopd.engines.draws import extra_args, worker_spec
from asyncopd.engines.turn import token_seed
from asyncopd.records import GenerateRequest, Version

GENERATE = "/inference/v1/generate"
ABORT = "/abort_requests"

# Each piece of a stream costs server and reader the same, whether it brings one token or several; those not yet sent
# are sampled again, should the server die.
STREAM_INTERVAL = 8


def stream_head(request: GenerateRequest) -> int:
    """Return how many of the likeliest tokens come in the stream; those that draws lie beyond come with the draws."""
    return request.draws.head - worker_spec(request.draws).head


def generate_body(key: str, request: GenerateRequest, count: int, version: Version) -> dict[str, Any]:
    """Return what asks for `count` tokens of `request`, under the id `key`, of a server that serves `version`."""
    sampling, head = request.sampling, stream_head(request)
    return {
        "request_id": key,
        "token_ids": request.prompt_ids + request.resume_ids,
        "cache_salt": str(version),
        "stream": True,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": token_seed(sampling.seed, len(request.resume_ids)),
            "max_tokens": count,
            "stop_token_ids": sampling.stop_ids,
            "ignore_eos": True,
            # The server counts the sampled token among them, even where it is not one of the likeliest.
            "logprobs": head + 1 if head else 0,
            "detokenize": False,
            "stream_interval": STREAM_INTERVAL,
            "extra_args": extra_args(request, key),
        },
    }


def abort_body(key: str) -> dict[str, Any]:
    """Return what ends the request with the id `key`, to which vLLM adds a prefix."""
    return {"request_ids": [f"generate-tokens-{key}"]}
