"""vLLM as one would use it without asyncopd: the yardstick for our engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from asyncopd.config.root import TrainConfig
from asyncopd.engines.turn import token_seed
from asyncopd.engines.vllm.launch import launch
from asyncopd.records import NO_DRAWS, GenerateRequest

_SHUTDOWN_S = 10.0


class BareVllm:
    """Serves requests by `AsyncLLM.generate` alone."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def serve(self, request: GenerateRequest) -> int:
        """Sample the turn, with its log-probabilities, and return its tokens' number."""
        parameters = SamplingParams(
            temperature=request.sampling.temperature,
            seed=token_seed(request.sampling.seed, 0),
            max_tokens=request.sampling.max_tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        count = 0
        async for output in self._llm.generate(tokens_input(request.prompt_ids), parameters, request.request_id):
            count = len(output.outputs[0].token_ids)
        return count


@asynccontextmanager
async def bare_vllm(config: TrainConfig, student: Path) -> AsyncIterator[BareVllm]:
    """Start vLLM with the engine arguments and in the process layout of our engine."""
    llm = await launch(
        student,
        config.engine,
        dtype=config.student.dtype,
        threads=config.runtime.threads.engine,
        seed=config.run.seed,
        draws=NO_DRAWS,
    )
    try:
        yield BareVllm(llm)
    finally:
        if llm.output_handler is not None:
            llm.output_handler.cancel()  # or it reports the core's orderly end as a failure
            await asyncio.wait({llm.output_handler})
        await asyncio.to_thread(llm.shutdown, _SHUTDOWN_S)
