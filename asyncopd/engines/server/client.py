"""HTTP to one vLLM server, over TCP or a unix socket.

Every answer is checked and every call has a time limit; what goes wrong names server, endpoint and what it said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

_CONNECT_S = 10.0
_SHOWN = 500  # characters of an answer that was no success


class ServerRefused(RuntimeError):
    """A server answered with an error; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerLost(ConnectionError):
    """A server could not be reached, or broke off."""


class Client:
    """Calls the server at `url`, or at the other end of `socket`."""

    def __init__(self, url: str, key: str | None, socket: Path | None = None) -> None:
        self.url = url if socket is None else str(socket)
        # None is kept for another request: a server closes an idle one at a moment of its own, late if it is busy, and
        # would lose a request on its way; and httpx looks through all idle ones for each idle one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            transport=None if socket is None else httpx.AsyncHTTPTransport(uds=str(socket), limits=limits),
            limits=limits,
            trust_env=socket is None,  # proxies and certificates are for servers elsewhere
        )

    async def call(
        self, method: str, path: str, body: object = None, *, timeout_s: float, **parameters: str | bool
    ) -> Any:
        """Return the JSON of an answer, None where it is empty.

        Raises `ServerRefused`, `ServerLost`, and `TimeoutError` after `timeout_s` seconds.
        """
        content = None if body is None else msgspec.json.encode(body)
        timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            response = await self._http.request(
                method, path, content=content, params=parameters, headers=_JSON, timeout=timeout
            )
        except httpx.TimeoutException as error:
            raise TimeoutError(f"{self.url} did not answer {method} {path} within {timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise ServerLost(f"{self.url}: {method} {path} failed: {_cause(error)}") from error
        self._check(response, response.content)
        return self._decode(response.content, path) if response.content else None

    @asynccontextmanager
    async def stream(self, path: str, body: object) -> AsyncIterator[AsyncIterator[bytes]]:
        """Post `body` and yield the pieces of the answer as they come, once its head has come; closed early, the
        connection is closed too. Raises `ServerRefused` and `ServerLost`, which may come in the middle of it."""
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        content = msgspec.json.encode(body)
        try:
            async with self._http.stream("POST", path, content=content, headers=_JSON, timeout=timeout) as response:
                if response.status_code != httpx.codes.OK:
                    self._check(response, await response.aread())
                yield response.aiter_raw()
        except httpx.TransportError as error:
            raise ServerLost(f"{self.url}: POST {path} broke off: {_cause(error)}") from error

    async def close(self) -> None:
        await self._http.aclose()

    def _check(self, response: httpx.Response, content: bytes) -> None:
        if not response.is_success:
            request = response.request
            raise ServerRefused(
                f"{self.url} answered {request.method} {request.url.path} with {response.status_code}: "
                f"{content.decode(errors='replace')[:_SHOWN] or 'nothing'}",
                response.status_code,
            )

    def _decode(self, content: bytes, path: str) -> Any:
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            shown = content.decode(errors="replace")[:_SHOWN]
            raise ServerLost(f"{self.url} answered {path} with what is no JSON ({error}): {shown}") from error


_JSON = {"content-type": "application/json"}


def _cause(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
