"""A vLLM server behind `seams.Engine`, token in, token out, with weights that change in flight.

Invariants:
- a request is submitted behind the gate, at one version, which salts its prefix blocks: no request ever reuses keys
  and values that older weights computed for another one;
- tokens are taken in as they are sampled, so what came of a request outlives its server, with exact versions;
- an update that is begun and not committed leaves the server paused, so wrong weights never sample; one that someone
  else started serves nothing before its first update;
- every wait ends: by its answer, its deadline, or the server's death;
- a request that is given up is aborted on the server.
"""

from __future__ import annotations

import asyncio
import base64
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress

import msgspec

from asyncopd.config.engine import EngineSection
from asyncopd.engines.draws import Collector, completed, worker_spec
from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.server.answer import Answer
from asyncopd.engines.server.client import Client, ServerLost, ServerRefused
from asyncopd.engines.server.control import HttpControl
from asyncopd.engines.server.process import ServerProcess
from asyncopd.engines.server.receiver import ServerReceiver
from asyncopd.engines.server.stream import StreamReader
from asyncopd.engines.server.wire import ABORT, GENERATE, abort_body, generate_body, stream_head
from asyncopd.engines.turn import ended_turn, tokens_left
from asyncopd.records import DrawSpec, EngineCapabilities, GenerateRequest, Generation, Sampling, Version
from asyncopd.seams import EngineDied

_POLL_S = 0.1
_LAST_WORDS_S = 1.0  # a server that broke off may be dying, and its log says of what
_SHORT_S = 10.0
_FAULTS_OF_REQUESTS = frozenset({400, 422})


class ServerEngine:
    """Implements `seams.Engine`; made in `start`. A server without `process` is someone else's."""

    def __init__(
        self,
        name: str,
        client: Client,
        section: EngineSection,
        version: Version,
        draws: DrawSpec,
        process: ServerProcess | None = None,
    ) -> None:
        self.name = name
        self.capabilities = EngineCapabilities(draws=draws, max_context=section.max_context, deterministic=False)
        self._client = client
        self._section = section
        self._gate = Gate(version)
        self._gate.whole = process is not None  # of another, nobody knows the weights
        self._lifeline = Lifeline(name)
        self._process = process
        self._death = None if process is None else asyncio.create_task(self._watch(process), name=f"watch-{name}")
        self._control = HttpControl(client, section.update_timeout_s)
        self._answers: dict[str, Answer] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._collector = Collector(self._fetch_draws)
        self.receiver = ServerReceiver(
            name, self._control, self._gate, self._lifeline, section.kv_policy, self._answers
        )

    async def begin(self, version: Version) -> None:
        """Wait until the server is up, have it label its tokens, and warm it up: its first request costs seconds."""
        await self._lifeline.hold(self._up())
        await self._lifeline.hold(self._control.label(str(version)))
        sampling = Sampling(temperature=1.0, max_tokens=2, seed=0, stop_ids=())
        await self.generate(
            GenerateRequest(
                request_id="warm-up",
                trajectory_id="warm-up",
                prompt_ids=[0],
                sampling=sampling,
                min_version=version,
                deadline=math.inf,
            )
        )

    async def _up(self) -> None:
        while True:
            try:
                await self._client.call("GET", "/health", timeout_s=_SHORT_S)
                return
            except (ServerLost, TimeoutError):
                await asyncio.sleep(_POLL_S)

    async def _watch(self, process: ServerProcess) -> None:
        self._lifeline.sever(f"died: its server {await process.ended()}")

    @property
    def version(self) -> Version:
        return self._gate.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a turn.

        Raises `DeadlineExceeded`, `EngineDied` with what had come, and `ValueError` for what the server refuses.
        """
        count = tokens_left(request, self.capabilities)
        if count == 0:
            return ended_turn(request)
        key = uuid.uuid4().hex  # a server may have other clients, and a turn may come to it twice
        try:
            return await self._lifeline.hold(
                self._serve(key, request, count), request.deadline, lambda: self._gate.wait_of(request, self.name)
            )
        except EngineDied as death:
            answer = self._answers.get(key)
            raise EngineDied(str(death), None if answer is None else answer.generation()) from death
        finally:
            self._answers.pop(key, None)

    async def _serve(self, key: str, request: GenerateRequest, count: int) -> Generation:
        reader = StreamReader()
        try:
            async with AsyncExitStack() as stack:
                answer, pieces = await self._submit(key, request, count, stack)
                async for piece in pieces:
                    for choice in reader.read(piece):
                        answer.add(choice)
            if not answer.finished:
                raise ServerLost(f"{self._client.url} ended a stream before its last token")
            return await self._completed(key, request, answer.generation())
        except ServerRefused as error:
            if error.status in _FAULTS_OF_REQUESTS:
                raise ValueError(f"request {request.request_id}: {error}") from error
            raise await self._lost(error) from error
        except ServerLost as error:
            raise await self._lost(error) from error
        finally:
            self._give_up(key, request)

    async def _submit(
        self, key: str, request: GenerateRequest, count: int, stack: AsyncExitStack
    ) -> tuple[Answer, AsyncIterator[bytes]]:
        """Return what comes of the request, once the server has it: it hands it to its core before it answers."""
        async with self._gate.enter(request.min_version) as version:
            recomputed = self._section.kv_policy == "recompute"
            answer = self._answers[key] = Answer(version, stream_head(request), recomputed=recomputed)
            body = generate_body(key, request, count, version)
            return answer, await stack.enter_async_context(self._client.stream(GENERATE, body))

    async def _completed(self, key: str, request: GenerateRequest, generation: Generation) -> Generation:
        """Return `generation` with the draws that the worker keeps."""
        if not worker_spec(request.draws).width:
            return generation
        kept = await self._collector.take(key)
        draws, undrawn_R = completed(kept, request.draws, len(generation.ids_R), generation.draws)
        return msgspec.structs.replace(generation, draws=draws, undrawn_R=undrawn_R)

    async def _fetch_draws(self, keys: Sequence[str]) -> bytes:
        texts = await self._control.call("take_draws_text", *keys)
        return base64.b64decode(max(texts, key=len))  # ranks that sample do so alike, the others drew nothing

    async def _lost(self, error: Exception) -> EngineDied:
        """Give the server up, and return why."""
        if self._death is not None:
            await asyncio.wait({self._death}, timeout=_LAST_WORDS_S)
        self._lifeline.sever(f"died: {error}")
        return EngineDied(f"engine {self.name} died: {error}")

    def _give_up(self, key: str, request: GenerateRequest) -> None:
        """Have the server forget a request that is not finished; a closed connection may not reach it."""
        answer = self._answers.get(key)
        if answer is None or answer.finished or self._lifeline.severed:
            return
        abort = asyncio.create_task(self._abort(key))
        self._aborts.add(abort)
        abort.add_done_callback(self._aborts.discard)
        if worker_spec(request.draws).width:
            self._collector.discard(key)

    async def _abort(self, key: str) -> None:
        with suppress(ServerLost, ServerRefused, TimeoutError):  # the next request or probe finds out
            await self._client.call("POST", ABORT, abort_body(key), timeout_s=_SHORT_S)

    async def probe(self) -> None:
        """Ask the server's core, which answers between two steps. Raises `EngineDied`."""
        try:
            await self._lifeline.hold(self._client.call("GET", "/is_paused", timeout_s=self._section.probe_timeout_s))
        except (ServerLost, ServerRefused) as error:
            raise await self._lost(error) from error

    async def close(self) -> None:
        """End a server of our own, leave another's; requests under way raise `EngineDied`."""
        self._lifeline.sever("was closed")
        if self._death is not None:
            self._death.cancel()
        self._collector.close()
        for abort in self._aborts:
            abort.cancel()
        await self._client.close()
        if self._process is not None:
            await self._process.close()
