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
from asyncopd.engines.turn import ended_turn, tokens_left
from asyncopd.models.loading import load_causal_lm
from asyncopd.records import (
    NO_DRAWS,
    DrawSpec,
    EngineCapabilities,
    GenerateRequest,
    Generation,
    Manifest,
    Version,
)
from asyncopd.tensors.broadcast import BroadcastReceiver
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.shadow import Shadow


class TorchEngine:
    """Implements `seams.Engine`; made by `start`."""

    def __init__(
        self,
        name: str,
        decoder: Decoder,
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
        self.receiver = TorchReceiver(name, self._server, self._gate, self._lifeline)

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
        return cls(name, decoder, thread, section, version, draws)

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


class TorchReceiver:
    """Implements `seams.WeightReceiver` for one `TorchEngine`."""

    def __init__(self, name: str, server: _Server, gate: Gate, lifeline: Lifeline) -> None:
        self.name = name
        self._server = server
        self._gate = gate
        self._lifeline = lifeline
        self._broadcasts = BroadcastReceiver()
        self._shadow = Shadow(self._broadcasts)
        self._received: Version | None = None

    async def freeze(self) -> None:
        """Let no request in, and wait for the ones under way to finish."""
        await self._gate.shut()
        await self._lifeline.hold(self._server.drained())

    async def prepare(self, manifest: Manifest) -> None:
        """Take in what comes by broadcast; files are read later, by the thread that samples."""
        if manifest.files[-1].format == "broadcast":
            await self._lifeline.hold(asyncio.to_thread(self._shadow.follow, manifest))

    async def receive(self, manifest: Manifest) -> None:
        """Load the weights of `manifest`; a file refused before loading leaves the old weights in service."""
        self._received = None
        await self._lifeline.hold(self._server.call(self._load, manifest))
        self._received = manifest.version

    def _load(self, manifest: Manifest) -> None:
        self._shadow.follow(manifest)
        found = self._shadow.tensors
        model = self._server.decoder.model
        expected = dict(model.named_parameters())
        for name in sorted(expected.keys() | found.keys() - model.all_tied_weights_keys.keys()):
            if name not in found or name not in expected or found[name].shape != expected[name].shape:
                raise TornWeights(f"{manifest.files[-1].path}: {name} is not as in the checkpoint that is served")
        self._gate.whole = False
        for name, parameter in expected.items():
            parameter.copy_(found[name])
        if manifest.files[-1].base is None:
            # A delta may never follow, and what was mapped or received would stay in memory.
            self._shadow = Shadow(self._broadcasts)

    async def commit(self, version: Version) -> None:
        """Serve `version`, which must have been received."""
        assert self._received == version, f"commit of {version} after receiving {self._received}"
        self._gate.commit(version)

    async def thaw(self) -> None:
        """Let requests in again; after an update begun and not committed, they wait for the next one."""
        self._gate.open()


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
