"""The receiving side of a weight update, for vLLM in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.records import Manifest, Version


class VllmReceiver:
    """Implements `seams.WeightReceiver` for one `VllmEngine`."""

    def __init__(self, name: str, llm: AsyncLLM, gate: Gate, lifeline: Lifeline) -> None:
        self.name = name
        self._llm = llm
        self._gate = gate
        self._lifeline = lifeline
        self._update: asyncio.Task[None] | None = None
        self._received: Version | None = None

    async def prepare(self, manifest: Manifest) -> None:
        """Nothing is done ahead."""

    async def freeze(self) -> None:
        """Let no request in, and hold the ones under way with their keys and values."""
        await self._gate.shut()
        await self._lifeline.hold(self._llm.pause_generation(mode="keep", clear_cache=False))

    async def receive(self, manifest: Manifest) -> None:
        """Load the weights of `manifest`; a file refused before loading leaves the old weights in service."""
        if self._update is not None:
            # Cut off by a deadline, it still runs in the worker, which refuses a second one beside it.
            await self._lifeline.hold(_ended(self._update))
        self._update = asyncio.create_task(self._load(manifest))
        await self._lifeline.hold(_shielded(self._update))

    async def _load(self, manifest: Manifest) -> None:
        self._received = None
        await self._llm.start_weight_update()
        chunk = {"manifest": msgspec.to_builtins(manifest)}
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=chunk))
        self._gate.whole = False
        await self._llm.update_weights(WeightTransferUpdateRequest())
        await self._llm.finish_weight_update()
        self._received = manifest.version

    async def commit(self, version: Version) -> None:
        """Label the tokens sampled from here on with `version`, which must have been received."""
        assert self._received == version, f"commit of {version} after receiving {self._received}"
        await self._lifeline.hold(self._llm.update_weight_version(str(version)))
        self._gate.commit(version)

    async def thaw(self) -> None:
        """Go on; after an update that was begun and not committed, stay paused until one is."""
        try:
            if self._gate.whole:
                await self._lifeline.hold(self._llm.resume_generation())
        finally:
            self._gate.open()


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


def _shielded(task: asyncio.Task[None]) -> Coroutine[Any, Any, None]:
    async def wait() -> None:
        await asyncio.shield(task)

    return wait()
