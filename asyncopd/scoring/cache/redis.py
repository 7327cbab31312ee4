"""A score store on a Redis or Valkey server: many keys a round trip, every wait bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from asyncopd.scoring.cache.errors import StoreUnavailable

_CONNECT_S = 2.0
_ANSWER_S = 5.0
# ValueError: the client's parser, given something that is not the protocol.
_FAILURES = (RedisError, OSError, ValueError)


class RedisStore:
    """Speaks to the server at `url` (`redis://`, `rediss://` or `unix://`); connects at the first call.

    Raises `StoreUnavailable` when the server is gone, slow or refuses; a later call may succeed again.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=_ANSWER_S,
            # One more try, on a new connection: the old one may have died with an earlier server.
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        )

    @property
    def address(self) -> str:
        """Where the server is, without credentials."""
        where: dict[str, Any] = self._client.connection_pool.connection_kwargs
        return where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"

    async def ping(self) -> None:
        """Raise `StoreUnavailable` unless the server answers."""
        try:
            await self._client.ping()
        except _FAILURES as error:
            raise self._unavailable(error) from error

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            values: Any = await self._client.mget(keys)
        except _FAILURES as error:
            raise self._unavailable(error) from error
        if not isinstance(values, list) or len(values) != len(keys):
            raise self._unavailable(ValueError("its answer is not one value a key"))
        return values

    async def put(self, items: Mapping[bytes, bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, value in items.items():
            pipeline.set(key, value)
        try:
            await pipeline.execute()
        except _FAILURES as error:
            raise self._unavailable(error) from error

    async def stats(self) -> dict[str, float]:
        try:
            memory = await self._client.info("memory")
            return {"entries": await self._client.dbsize(), "bytes": memory["used_memory"]}
        except _FAILURES as error:
            raise self._unavailable(error) from error

    async def close(self) -> None:
        await self._client.aclose()

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"the score cache at {self.address} failed ({error})")
