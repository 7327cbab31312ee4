"""The controls of a vLLM in this process that a weight update needs."""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM


class InProcess:
    """Implements `receiver.VllmControl`."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def pause(self) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def resume(self) -> None:
        await self._llm.resume_generation()

    async def recompute(self) -> None:
        await self._llm.reset_prefix_cache(reset_running_requests=True)

    async def call(self, method: str, **arguments: str) -> list[Any]:
        return await self._llm.collective_rpc(method, kwargs=arguments)

    async def start_update(self) -> None:
        await self._llm.start_weight_update()

    async def update(self, info: dict[str, Any]) -> None:
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))

    async def finish_update(self) -> None:
        await self._llm.finish_weight_update()

    async def label(self, version: str) -> None:
        await self._llm.update_weight_version(version)
