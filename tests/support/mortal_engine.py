"""An engine in memory that samples what its request's seed says, and can die, hang and miss updates."""

from __future__ import annotations

import asyncio

import numpy as np

from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.turn import ended_turn, token_seed, tokens_left
from asyncopd.records import Draws, DrawSpec, EngineCapabilities, GenerateRequest, Generation, Manifest, Version
from asyncopd.seams import EngineDied, WeightReceiver

CAPABILITIES = EngineCapabilities(draws=DrawSpec(head=4), max_context=256, deterministic=True)


def said(request: GenerateRequest, count: int) -> list[int]:
    """Return the first `count` tokens of the turn, whoever samples them."""
    return [token_seed(request.sampling.seed, position) % 89 + 2 for position in range(count)]


class MortalEngine:
    """Samples a token each `pace_s` seconds; `tells` says whether its death names what had come of a turn."""

    def __init__(
        self, name: str, version: Version = Version(0, 0), *, tells: bool = True, pace_s: float = 0.0  # noqa: B008
    ) -> None:  # fmt: skip
        self.name = name
        self.capabilities = CAPABILITIES
        self.served: list[GenerateRequest] = []
        self.closed = False
        self.fault = ""
        self._tells = tells
        self._pace_s = pace_s
        self._hangs = asyncio.Event()
        self._death: str | None = None
        self._gate = Gate(version)
        self._lifeline = Lifeline(name)
        self.receiver = MortalReceiver(self, self._gate)

    @property
    def version(self) -> Version:
        return self._gate.version

    def die(self, reason: str = "died: it was killed") -> None:
        self._death = reason
        if self._hangs.is_set():
            self._lifeline.sever(reason)

    def hang(self) -> None:
        self._hangs.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        left = tokens_left(request, self.capabilities)
        if left == 0:
            return ended_turn(request)
        return await self._lifeline.hold(self._serve(request, left), request.deadline)

    async def _serve(self, request: GenerateRequest, left: int) -> Generation:
        begun = len(request.resume_ids)
        tokens = said(request, begun + left)[begun:]
        versions: list[int] = []
        async with self._gate.enter(request.min_version):
            self.served.append(request)
        for _ in tokens:
            await asyncio.sleep(self._pace_s)
            if self._hangs.is_set():
                await asyncio.Event().wait()
            if self._death is not None:
                partial = self._generation(request, tokens[: len(versions)], versions, "aborted")
                raise EngineDied(f"engine {self.name} {self._death}", partial if self._tells else None)
            versions.append(self.version.pack())
        return self._generation(request, tokens, versions, "length")

    def _generation(
        self, request: GenerateRequest, tokens: list[int], versions: list[int], stop_reason: str
    ) -> Generation:
        count, head, begun = len(tokens), request.draws.head, len(request.resume_ids)
        position_R = np.arange(begun, begun + count, dtype=np.float32)
        draws = None
        if head and stop_reason != "aborted":
            draws = Draws(
                head_ids_RK=np.full((count, head), 7, np.int32), head_logp_RK=np.full((count, head), -7, np.float32)
            )
        return Generation(
            ids_R=np.array(tokens, np.int32),
            logp_R=-1 - position_R,
            version_R=np.array(versions, np.int64),
            mixed_kv_R=np.array([version != versions[0] for version in versions], np.uint8),
            stop_reason=stop_reason,
            draws=draws,
        )

    async def probe(self) -> None:
        if self._death is not None:
            raise EngineDied(f"engine {self.name} {self._death}")
        if self._hangs.is_set():
            await asyncio.Event().wait()

    async def close(self) -> None:
        assert not self.closed, f"{self.name} was closed twice"
        self.closed = True
        self.die(self._death or "was closed")


class MortalReceiver:
    """In phase `engine.fault` of an update it raises."""

    def __init__(self, engine: MortalEngine, gate: Gate) -> None:
        self.name = engine.name
        self._engine = engine
        self._gate = gate

    def _enter(self, phase: str) -> None:
        if self._engine.fault == phase:
            raise OSError("no luck")

    async def prepare(self, manifest: Manifest) -> None:
        self._enter("prepare")

    async def freeze(self) -> None:
        await self._gate.shut()
        self._enter("freeze")

    async def receive(self, manifest: Manifest) -> None:
        await asyncio.sleep(0)
        self._enter("receive")

    async def commit(self, version: Version) -> None:
        self._enter("commit")
        self._gate.commit(version)

    async def thaw(self) -> None:
        self._gate.open()
        self._enter("thaw")


async def bring(receiver: WeightReceiver, version: Version) -> None:
    """Have an engine go through an update that succeeds."""
    await receiver.freeze()
    await receiver.commit(version)
    await receiver.thaw()
