"""vLLM's asynchronous engine, its core in a process of its own, with weights that change in flight.

Invariants:
- a request is submitted behind the gate, at one version, which salts its prefix blocks: no request ever
  reuses keys and values that older weights computed for another one;
- each token carries the version whose weights sampled it, by vLLM's own spans;
- an update that is begun and not committed leaves vLLM paused, so wrong weights never sample;
- every wait ends: by its answer, its deadline, or the core's death.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from vllm.inputs import tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.draws import Collector, completed, extra_args, worker_spec
from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.turn import ended_turn, token_seed, tokens_left
from asyncopd.engines.vllm.control import InProcess
from asyncopd.engines.vllm.launch import launch
from asyncopd.engines.vllm.receiver import KvPolicy, VllmReceiver
from asyncopd.records import (
    NO_DRAWS,
    Draws,
    DrawSpec,
    EngineCapabilities,
    GenerateRequest,
    Generation,
    Sampling,
    Version,
)
from asyncopd.seams import EngineDied

_SHUTDOWN_S = 10.0
_DEATH = "died: the process of vLLM's engine core ended; its own log says why"
_STOP_REASONS = {"stop": "stop", "length": "length", "abort": "aborted"}


class VllmEngine:
    """Implements `seams.Engine`; made by `start`."""

    def __init__(
        self, name: str, llm: AsyncLLM, version: Version, capabilities: EngineCapabilities, kv_policy: KvPolicy
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self._llm = llm
        self._kv_policy = kv_policy
        self._gate = Gate(version)
        self._lifeline = Lifeline(name)
        self._numbers = itertools.count()
        self._collector = Collector(self._fetch_draws)
        self.receiver = VllmReceiver(name, InProcess(llm), self._gate, self._lifeline, kv_policy)

    @classmethod
    async def start(
        cls,
        name: str,
        directory: Path,
        section: EngineSection,
        *,
        dtype: Dtype,
        threads: int,
        seed: int,
        version: Version = Version(0, 0),  # noqa: B008 - immutable
        draws: DrawSpec = NO_DRAWS,
    ) -> VllmEngine:
        """Serve the checkpoint in `directory` as `version`, with up to `draws` a token.

        Raises `TimeoutError` after `section.start_timeout_s`, and what vLLM raises for a model it refuses.
        """
        async with asyncio.timeout(section.start_timeout_s):
            llm = await launch(directory, section, dtype=dtype, threads=threads, seed=seed, draws=draws)
            capabilities = EngineCapabilities(draws=draws, max_context=section.max_context, deterministic=False)
            engine = cls(name, llm, version, capabilities, section.kv_policy)
            try:
                await llm.update_weight_version(str(version))
                await engine._warm_up()
            except BaseException as error:
                await engine.close()
                if isinstance(error, EngineDeadError):
                    raise EngineDied(f"engine {name} {_DEATH}") from error
                raise
        return engine

    async def _warm_up(self) -> None:
        """The first request of a process costs seconds, and starts the task whose end tells of the core's."""
        sampling = Sampling(temperature=1.0, max_tokens=2, seed=0, stop_ids=())
        await self.generate(
            GenerateRequest(
                request_id="warm-up",
                trajectory_id="warm-up",
                prompt_ids=[0],
                sampling=sampling,
                min_version=self.version,
                deadline=math.inf,
            )
        )
        assert self._llm.output_handler is not None
        self._llm.output_handler.add_done_callback(lambda _: self._lifeline.sever(_DEATH))

    @property
    def version(self) -> Version:
        return self._gate.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a turn.

        Raises `DeadlineExceeded`, `EngineDied`, and `ValueError` for a prompt that fills the context.
        """
        count = tokens_left(request, self.capabilities)
        if count == 0:
            return ended_turn(request)
        return await self._lifeline.hold(
            self._serve(request, count), request.deadline, lambda: self._gate.wait_of(request, self.name)
        )

    async def _serve(self, request: GenerateRequest, count: int) -> Generation:
        key = f"{request.request_id}#{next(self._numbers)}"
        drawing = worker_spec(request.draws) != NO_DRAWS
        kept, finished = None, False
        try:
            async with self._gate.enter(request.min_version) as version:
                prompt = tokens_input(request.prompt_ids + request.resume_ids, cache_salt=str(version))
                outputs = await self._llm.add_request(request.request_id, prompt, _parameters(request, count, key))
            output = await outputs.get()
            finished = True
            if drawing:
                kept = await self._collector.take(key)
        except EngineDeadError as error:
            raise EngineDied(f"engine {self.name} {_DEATH}") from error
        finally:
            if not finished:
                await self._llm.abort(request.request_id)
                if drawing:
                    self._collector.discard(key)
        assert isinstance(output, RequestOutput)
        # Keys and values that are kept may be of the version at the start; recomputed ones are of the token's own.
        oldest_kv = version if self._kv_policy == "keep" else None
        generation = _generation(output.outputs[0], oldest_kv, _heads(request.draws))
        if not drawing:
            return generation
        draws, undrawn_R = completed(kept, request.draws, len(generation.ids_R), generation.draws)
        return msgspec.structs.replace(generation, draws=draws, undrawn_R=undrawn_R)

    async def _fetch_draws(self, keys: Sequence[str]) -> bytes:
        answers: list[bytes] = await self._llm.collective_rpc("take_draws", args=(keys,))
        return max(answers, key=len)  # ranks that sample do so alike, the others drew nothing

    async def probe(self) -> None:
        """Ask the core, which answers between two steps. Raises `EngineDied`."""
        try:
            await self._lifeline.hold(self._llm.is_paused())
        except EngineDeadError as error:
            raise EngineDied(f"engine {self.name} {_DEATH}") from error

    async def close(self) -> None:
        """End the engine's process; requests under way raise `EngineDied`."""
        self._lifeline.sever("was closed")
        self._collector.close()
        if self._llm.output_handler is not None:
            self._llm.output_handler.cancel()  # or it reports the core's orderly end as a failure
            await asyncio.wait({self._llm.output_handler})
        await asyncio.to_thread(self._llm.shutdown, _SHUTDOWN_S)


def _heads(wanted: DrawSpec) -> int:
    """Return how many of the likeliest tokens vLLM itself is asked for."""
    return wanted.head - worker_spec(wanted).head


def _parameters(request: GenerateRequest, count: int, key: str) -> SamplingParams:
    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=token_seed(sampling.seed, len(request.resume_ids)),
        max_tokens=count,
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=True,
        logprobs=_heads(request.draws),
        flat_logprobs=True,
        detokenize=False,
        extra_args=extra_args(request, key),
        skip_clone=True,  # made for this request alone; a deep copy costs more than all else of submitting it
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _generation(output: CompletionOutput, oldest_kv: Version | None, head: int) -> Generation:
    """Unpack vLLM's rows of log-probs: the sampled token, then TopK(μ) in falling order.

    Tokens of another version than `oldest_kv` follow keys and values that are partly of that one.
    """
    assert isinstance(output.logprobs, FlatLogprobs)
    assert output.weight_versions is not None
    assert output.finish_reason is not None
    count = len(output.token_ids)
    logp_RK = np.array(output.logprobs.logprobs, np.float32).reshape(count, head + 1)
    draws = None
    if head:
        ids_RK = np.array(output.logprobs.token_ids, np.int32).reshape(count, head + 1)
        draws = Draws(head_ids_RK=ids_RK[:, 1:], head_logp_RK=logp_RK[:, 1:])
    version_R = np.empty(count, np.int64)
    for span in output.weight_versions:
        version_R[span.start : span.end] = Version.parse(span.version).pack()
    return Generation(
        ids_R=np.array(output.token_ids, np.int32),
        logp_R=logp_RK[:, 0].copy(),
        version_R=version_R,
        mixed_kv_R=(version_R != (version_R if oldest_kv is None else oldest_kv.pack())).astype(np.uint8),
        stop_reason=_STOP_REASONS[output.finish_reason],
        draws=draws,
    )
