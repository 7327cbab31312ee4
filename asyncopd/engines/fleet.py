"""Several engines behind one.

Invariants:
- a request is given to engines of at least its version only, and to none that was lost;
- a turn whose engine dies goes on elsewhere after the tokens that came of it: each token is returned once, with
  the version and log μ of the engine that sampled it;
- a trajectory stays with the engine that holds its prefix, for as long as that serves;
- every wait ends: by an engine that can serve, by the deadline, or when no engine can come any more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asyncopd.engines.failover import joined, remainder
from asyncopd.engines.member import Loss, Member
from asyncopd.records import EngineCapabilities, GenerateRequest, Generation, Version
from asyncopd.seams import DeadlineExceeded, Engine, EngineDied, WeightReceiver
from asyncopd.telemetry.engine_counts import EngineCounts

Follower = Callable[[str, Version | None], None]
"""Is told of each engine that serves a version from now on, and of each that serves none any more."""

# Trajectories whose engine is remembered. One forgotten costs the computing of its prefix, and nothing else.
_HOMES = 65_536


class Fleet:
    """Implements `seams.Generator` with engines that join and are lost while it serves.

    `counts` is filled in by engine. `coming` holds a sentence on each engine that is awaited, by its place.
    `version` is the newest that was served.
    """

    capabilities: EngineCapabilities  # those of its engines, all alike, from the first one on

    def __init__(self, name: str, counts: dict[str, EngineCounts]) -> None:
        self.name = name
        self.counts = counts
        self.coming: dict[int, str] = {}
        self.version = Version(0, 0)
        self._members: dict[str, Member] = {}
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._followers: list[Follower] = []
        loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[str] = loop.create_future()

    @property
    def versions(self) -> dict[str, Version]:
        """The version of each engine that serves."""
        return {name: member.version for name, member in self._members.items()}

    @property
    def receivers(self) -> list[WeightReceiver]:
        return [member.receiver for member in self._members.values()]

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a turn, with as many engines as it takes.

        Raises `DeadlineExceeded`, `EngineDied` where no engine is left and none can come, and `ValueError` for
        a prompt that fills the context.
        """
        parts: list[Generation] = []
        asked, moves = request, 0
        while True:
            member = await self._place(asked)
            counts = self.counts[member.name]
            try:
                part = await member.generate(asked)
            except EngineDied as death:
                self.lose(member.name, Loss(str(death)))
                counts.moved += 1
                moves += 1
                if death.partial is not None:
                    counts.tokens += len(death.partial.ids_R)
                    parts.append(death.partial)
                asked = remainder(request, parts, moves)
                continue
            counts.requests += 1
            counts.tokens += len(part.ids_R)
            return joined(request, [*parts, part])

    async def _place(self, request: GenerateRequest) -> Member:
        """Wait for an engine that can serve `request`, and take it."""
        while True:
            able = [member for member in self._members.values() if member.version >= request.min_version]
            if able:
                wanted = self._homes.get(request.trajectory_id, request.engine)
                home = next((member for member in able if member.name == wanted), None)
                chosen = home or min(able, key=lambda member: (member.requests, member.name))
                self._remember(request.trajectory_id, chosen.name)
                return chosen
            await self._change(request)

    def _remember(self, trajectory: str, engine: str) -> None:
        self._homes[trajectory] = engine
        self._homes.move_to_end(trajectory)
        if len(self._homes) > _HOMES:
            self._homes.popitem(last=False)

    async def _change(self, request: GenerateRequest) -> None:
        """Wait until an engine joins, or commits a version."""
        left = request.deadline - asyncio.get_running_loop().time()
        timeout = None if left == float("inf") else max(0.0, left)
        changed = self._changed
        ends: set[asyncio.Future[Any]] = {changed, self._ended}
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            raise EngineDied(self._ended.result())
        if not changed.done():
            raise DeadlineExceeded(
                f"request {request.request_id} of trajectory {request.trajectory_id} waited on the engines of "
                f"{self.name} for version {request.min_version}: {'; '.join(self.describe())}"
            )

    def describe(self) -> list[str]:
        """Return what each engine does, a sentence each."""
        serving = [
            f"{name} serves {member.version} to {member.requests} requests" for name, member in self._members.items()
        ]
        return [*serving, *self.coming.values()] or ["none is left"]

    def join(self, engine: Engine) -> Member:
        """Let `engine` serve from now on."""
        assert engine.name not in self._members, f"{engine.name} serves already"
        self.capabilities = engine.capabilities
        member = self._members[engine.name] = Member(engine, self._committed)
        self.counts.setdefault(engine.name, EngineCounts()).lost = ""
        self._committed(engine.name, engine.version)
        return member

    def lose(self, engine: str, loss: Loss) -> None:
        """Give `engine` no more requests; does nothing to one that was lost before."""
        member = self._members.pop(engine, None)
        if member is None:
            return
        self.counts[engine].lost = loss.reason
        member.lost.set_result(loss)
        for follower in self._followers:
            follower(engine, None)

    def end(self, reason: str) -> None:
        """Let no request wait any more: no engine is left, and none will come."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def ended(self) -> None:
        """Wait for the end, and raise it as `EngineDied`."""
        await asyncio.wait({self._ended})
        raise EngineDied(self._ended.result())

    @contextmanager
    def followed_by(self, follower: Follower) -> Iterator[None]:
        """Tell `follower` of every change inside."""
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)

    def _committed(self, engine: str, version: Version) -> None:
        """Say that `engine` serves `version`."""
        if engine not in self._members:
            return  # lost in the middle of its update
        self.version = max(self.version, version)
        for follower in self._followers:
            follower(engine, version)
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)
