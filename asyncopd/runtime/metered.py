"""A generator that counts its busy time."""

from __future__ import annotations

from asyncopd.records import EngineCapabilities, GenerateRequest, Generation, Version
from asyncopd.seams import Generator
from asyncopd.telemetry.metrics import BusyClock


class MeteredGenerator:
    """Passes everything on; `clock` runs while at least one request is under way."""

    def __init__(self, generator: Generator, clock: BusyClock) -> None:
        self.name = generator.name
        self.capabilities: EngineCapabilities = generator.capabilities
        self._generator = generator
        self._clock = clock

    @property
    def version(self) -> Version:
        return self._generator.version

    async def generate(self, request: GenerateRequest) -> Generation:
        with self._clock.busy():
            return await self._generator.generate(request)
