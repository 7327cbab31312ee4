"""The reference engine: a Hugging Face model in this process, for tiny models and for reproducible runs.

Invariants:
- weights change only while no turn is being sampled, so a turn is of one version;
- with `engine.max_concurrent = 1` turns are sampled one at a time, in the order they came, and equal
  requests get bitwise equal answers;
- all computing happens in one thread of the engine's own, so the event loop stays free.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.decoder import Decoder, Row
from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.torch_receiver import TorchReceiver
from asyncopd.engines.turn import ended_turn, tokens_left
from asyncopd.models.loading import DTYPES, load_causal_lm
from asyncopd.records import (
    NO_DRAWS,
    DrawSpec,
    EngineCapabilities,
    GenerateRequest,
    Generation,
    Version,
)
from asyncopd.tensors.base import CheckpointTensors
from asyncopd.tensors.received import Received


class TorchEngine:
    """Implements `seams.Engine`; made by `start`."""

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        received: Received,
        thread: ThreadPoolExecutor,
        section: EngineSection,
        version: Version,
        draws: DrawSpec,
    ) -> None:
        self.name = name
        self.capabilities = EngineCapabilities(
            draws=draws, max_context=section.max_context, deterministic=section.max_concurrent == 1
        )
        self._gate = Gate(version)
        self._lifeline = Lifeline(name)
        self._server = _Server(decoder, thread, section.max_concurrent)
        self._task = asyncio.create_task(self._server.run(), name=f"engine-{name}")
        self._task.add_done_callback(self._ended)
        self.receiver = TorchReceiver(name, decoder.model, self._server, received, self._gate, self._lifeline)

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
    ) -> TorchEngine:
        """Serve the checkpoint in `directory` as `version`. `seed` is not needed: requests bring their own.

        Raises `TimeoutError` after `section.start_timeout_s`, and `UserError` for what is no checkpoint.
        """
        thread = ThreadPoolExecutor(1, f"engine-{name}", initializer=torch.set_num_threads, initargs=(threads,))

        def load() -> Decoder:
            return Decoder(load_causal_lm(directory, dtype).requires_grad_(False))

        try:
            async with asyncio.timeout(section.start_timeout_s):
                decoder = await asyncio.get_running_loop().run_in_executor(thread, load)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        received = Received(CheckpointTensors(directory), DTYPES[dtype])
        return cls(name, decoder, received, thread, section, version, draws)

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
        row = Row(
            context_ids=request.prompt_ids + request.resume_ids,
            resumed=len(request.resume_ids),
            count=count,
            draws=request.draws,
            sampling=request.sampling,
        )
        async with self._gate.enter(request.min_version) as version:
            answer = self._server.submit(row)
        try:
            await answer
        finally:
            self._server.withdraw(row)
        return _generation(row, version)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self._lifeline.sever("was closed" if error is None else f"died: {error!r}")

    async def probe(self) -> None:
        """Raise `EngineDied` once sampling has ended."""
        await self._lifeline.hold(asyncio.sleep(0))

    async def close(self) -> None:
        """Stop sampling; requests under way raise `EngineDied`."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await asyncio.to_thread(self._server.thread.shutdown)


class _Server:
    """Feeds waiting rows to a decoder, up to `capacity` at once, and answers each when it is finished."""

    def __init__(self, decoder: Decoder, thread: ThreadPoolExecutor, capacity: int) -> None:
        self.decoder = decoder
        self.thread = thread
        self._capacity = capacity
        self._waiting: dict[Row, asyncio.Future[None]] = {}
        self._running: dict[Row, asyncio.Future[None]] = {}
        self._leaving: list[Row] = []
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, row: Row) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[row] = answer
        self._idle.clear()
        self._work.set()
        return answer

    def withdraw(self, row: Row) -> None:
        """Stop sampling `row`; does nothing to one that is finished."""
        self._waiting.pop(row, None)
        if self._running.pop(row, None):
            self._leaving.append(row)

    async def drained(self) -> None:
        await self._idle.wait()

    async def call(self, function: Any, *arguments: Any) -> Any:
        """Run `function` in the thread that computes."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._work.wait()
            while self._waiting or self._running or self._leaving:
                joining = list(self._waiting)[: self._capacity - len(self._running)]
                self._running |= {row: self._waiting.pop(row) for row in joining}
                leaving, self._leaving = self._leaving, []
                for row in await self.call(self.decoder.step, joining, leaving):
                    answer = self._running.pop(row, None)
                    if answer is not None and not answer.done():
                        answer.set_result(None)
            self._work.clear()
            self._idle.set()


def _generation(row: Row, version: Version) -> Generation:
    count = len(row.ids)
    assert row.stop_reason is not None
    return Generation(
        ids_R=np.array(row.ids, np.int32),
        logp_R=np.array(row.logp, np.float32),
        version_R=np.full(count, version.pack(), np.int64),
        mixed_kv_R=np.zeros(count, np.uint8),
        stop_reason=row.stop_reason,
        draws=row.drawn,
    )
