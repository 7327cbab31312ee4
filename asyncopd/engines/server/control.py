"""What a weight update asks of vLLM, over HTTP; implements `vllm.receiver.VllmControl`."""

from __future__ import annotations

from typing import Any

from asyncopd.engines.server.client import Client, ServerRefused


class HttpControl:
    """Drives the server behind `client`; each call may take `timeout_s` seconds."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def pause(self) -> None:
        await self._post("/pause", mode="keep", clear_cache=False)

    async def resume(self) -> None:
        await self._post("/resume")

    async def recompute(self) -> None:
        answer = await self._post("/reset_prefix_cache", reset_running_requests=True)
        if not answer["success"]:  # said with a status of 200
            raise ServerRefused(f"{self._client.url} kept its keys and values, against /reset_prefix_cache", 200)

    async def call(self, method: str, *values: str, **arguments: str) -> list[Any]:
        answer = await self._post("/collective_rpc", {"method": method, "args": values, "kwargs": arguments})
        return [] if answer is None else answer["results"]

    async def start_update(self) -> None:
        await self._post("/start_weight_update")

    async def update(self, info: dict[str, Any]) -> None:
        await self._post("/update_weights", {"update_info": info})

    async def finish_update(self) -> None:
        await self._post("/finish_weight_update", {})

    async def label(self, version: str) -> None:
        await self._post("/update_weight_version", {"new_version": version})

    async def _post(self, path: str, body: object = None, **parameters: str | bool) -> Any:
        return await self._client.call("POST", path, body, timeout_s=self._timeout_s, **parameters)
