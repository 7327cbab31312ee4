"""From `scoring.cache` to a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from asyncopd.config.scoring import ScoringSection
from asyncopd.errors import UserError
from asyncopd.scoring.cache.embedded import EmbeddedStore, server_binary
from asyncopd.scoring.cache.errors import StoreUnavailable
from asyncopd.scoring.cache.memory import MemoryStore
from asyncopd.scoring.cache.redis import RedisStore
from asyncopd.seams import ScoreStore


@asynccontextmanager
async def open_store(section: ScoringSection, directory: Path) -> AsyncIterator[ScoreStore | None]:
    """Yield the store that `section` asks for, `None` for `off`; it is closed at the end.

    `directory` is where an embedded server keeps its data. Raises `UserError` if that server does not
    start; a Redis URL is not tried here, see `check`.
    """
    if section.cache == "off":
        yield None
        return
    store: EmbeddedStore | MemoryStore | RedisStore
    if section.cache == "embedded":
        store = EmbeddedStore(directory, section.cache_mib)
        try:
            await store.start()
        except StoreUnavailable as error:
            raise UserError("scoring.cache", str(error), "set scoring.cache=memory to do without") from error
    elif section.cache == "memory":
        store = MemoryStore(section.cache_mib * 2**20)
    else:
        store = RedisStore(section.cache)
    try:
        yield store
    finally:
        await store.close()


async def check(section: ScoringSection) -> None:
    """Raise `UserError` if the cache of `section` cannot be had on this machine now."""
    if section.cache == "embedded":
        server_binary()
    elif section.cache not in ("memory", "off"):
        store = RedisStore(section.cache)
        try:
            await store.ping()
        except StoreUnavailable as error:
            raise UserError(
                "scoring.cache",
                f"no Redis answers at {store.address} ({error.__cause__})",
                "start it there, correct the URL, or set scoring.cache=embedded",
            ) from error
        finally:
            await store.close()
