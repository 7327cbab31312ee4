"""A score store in this process, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence


class MemoryStore:
    """Keeps at most `budget` bytes of keys and values; the least recently used go first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        for key in keys:
            if key in self._values:
                self._values.move_to_end(key)
        return [self._values.get(key) for key in keys]

    async def put(self, items: Mapping[bytes, bytes]) -> None:
        for key, value in items.items():
            self._forget(key)
            self._values[key] = value
            self._bytes += len(key) + len(value)
        while self._bytes > self._budget:
            self._forget(next(iter(self._values)))

    async def stats(self) -> dict[str, float]:
        return {"entries": len(self._values), "bytes": self._bytes}

    async def close(self) -> None:
        self._values.clear()
        self._bytes = 0

    def _forget(self, key: bytes) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= len(key) + len(value)
