"""A small HTTP server whose answers a test writes, byte by byte if it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Behaviour = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """A request, and how it is answered."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter

    async def answer(self, content: bytes, status: int = 200) -> None:
        head = f"HTTP/1.1 {status} Said\r\ncontent-length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)
        await self.writer.drain()

    async def answer_json(self, value: Any, status: int = 200) -> None:
        await self.answer(json.dumps(value).encode(), status)

    async def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await self.writer.drain()

    async def send(self, content: bytes) -> None:
        self.writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        await self.writer.drain()

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class HttpServer:
    """`behaviours` are by path, without its parameters; `seen` is all that was asked, in order."""

    url: str = ""
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    seen: list[Exchange] = field(default_factory=list)

    def asked(self, path: str) -> list[Exchange]:
        return [exchange for exchange in self.seen if exchange.path.split("?")[0] == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, value = header.split(":", 1)
                    headers[name.lower()] = value.strip()
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                exchange = Exchange(method, path, headers, json.loads(content) if content else None, writer)
                self.seen.append(exchange)
                await self.behaviours[path.split("?")[0]](exchange)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has enough, or the test
        finally:
            writer.close()


@asynccontextmanager
async def http_server() -> AsyncIterator[HttpServer]:
    """Serve on a free port of this machine."""
    server = HttpServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield server
    listening.close()
