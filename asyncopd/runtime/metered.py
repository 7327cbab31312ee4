"""An engine that counts its busy time."""

from __future__ import annotations

from asyncopd.records import EngineCapabilities, GenerateRequest, Generation, Version
from asyncopd.seams import Engine, WeightReceiver
from asyncopd.telemetry.metrics import BusyClock


class MeteredEngine:
    """Passes everything on; `clock` runs while at least one request is under way."""

    def __init__(self, engine: Engine, clock: BusyClock) -> None:
        self.name = engine.name
        self.capabilities: EngineCapabilities = engine.capabilities
        self._engine = engine
        self._clock = clock

    @property
    def version(self) -> Version:
        return self._engine.version

    @property
    def receiver(self) -> WeightReceiver:
        return self._engine.receiver

    async def generate(self, request: GenerateRequest) -> Generation:
        with self._clock.busy():
            return await self._engine.generate(request)

    async def close(self) -> None:
        await self._engine.close()
