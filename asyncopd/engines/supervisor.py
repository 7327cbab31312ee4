"""Keeps the places of a fleet filled: starts engines, asks whether they live, and replaces those that do not.

Invariants:
- an engine that was lost is closed before another starts in its place, so that the two never share its memory;
- a new engine serves only once it has caught up with the newest weights;
- at most `max_replacements` engines are started in place of others; a server that someone else runs is looked for
  again for as long as others serve;
- when no place is filled or can be, the fleet ends, and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from asyncopd.config.engine import EngineSection
from asyncopd.engines.fleet import Fleet
from asyncopd.engines.member import Loss, Member
from asyncopd.records import Version
from asyncopd.seams import Engine, EngineDied, WeightReceiver

_log = logging.getLogger(__name__)

Start = Callable[[str, str | None], Awaitable[Engine]]
"""Starts the engine of that name, or connects to the server at that URL."""

CatchUp = Callable[[WeightReceiver], Awaitable[Version | None]]

_TRIES = 3
_PAUSE_S = 2.0


@dataclass(eq=False)
class Place:
    """Where one engine after another serves; `url` is that of a server that someone else runs."""

    index: int
    url: str | None
    engines: int = 0

    def name(self, fleet: str) -> str:
        """Return the name of its next engine."""
        self.engines += 1
        first = f"{fleet}-{self.index}"
        return first if self.engines == 1 else f"{first}.{self.engines - 1}"


class Supervisor:
    """Fills `fleet` with the engines that `section` asks for. `warn` is told what happens to them."""

    def __init__(
        self, fleet: Fleet, section: EngineSection, start: Start, catch_up: CatchUp, warn: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._section = section
        self._start = start
        self._catch_up = catch_up
        self._warn = warn
        urls: list[str | None] = [*section.urls] or [None] * section.replicas
        self._places = [Place(index, url) for index, url in enumerate(urls)]
        self._members: dict[Place, Member] = {}
        self._keepers: set[asyncio.Task[None]] = set()
        self._replacements = 0

    async def start(self) -> None:
        """Start all engines together; they are kept alive from then on. Raises what one of them raises."""
        try:
            async with asyncio.TaskGroup() as group:
                for place in self._places:
                    group.create_task(self._begin(place))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self._keepers = {asyncio.create_task(self._keep(place)) for place in self._places}
        for keeper in self._keepers:
            keeper.add_done_callback(self._given_up)

    def stop(self) -> None:
        """Replace nothing any more; engines that serve go on."""
        for keeper in self._keepers:
            keeper.remove_done_callback(self._given_up)
            keeper.cancel()

    async def close(self) -> None:
        """End all engines; requests under way raise `EngineDied`."""
        self.stop()
        if self._keepers:
            await asyncio.wait(self._keepers)
        await asyncio.gather(*(member.end(0.0) for member in self._members.values()))

    def drain(self, engine: str, reason: str) -> None:
        """Give `engine` no more requests; those under way may take a probe's time to finish, and then move."""
        self._fleet.lose(engine, Loss(reason, self._section.probe_timeout_s))

    async def _begin(self, place: Place) -> None:
        name = place.name(self._fleet.name)
        try:
            engine = await self._start(name, place.url)
        except EngineDied as death:
            self._warn(f"engine {name} did not start: {death}; it is started once more")
            engine = await self._start(name, place.url)
        self._members[place] = self._fleet.join(engine)

    async def _keep(self, place: Place) -> None:
        """Fill `place` with one engine after another, until it is given up."""
        while member := self._members.get(place):
            loss = await self._watch(member)
            self._fleet.coming[place.index] = f"{member.name} ends"
            await member.end(loss.grace_s)
            del self._members[place]
            if place.url is None:
                await self._replace(place, loss.reason)
            else:
                await self._look_for(place, loss.reason)
            del self._fleet.coming[place.index]

    def _given_up(self, keeper: asyncio.Task[None]) -> None:
        """End the fleet with its last place."""
        self._keepers.discard(keeper)
        if not self._keepers and not keeper.cancelled():
            keeper.result()
            last = [counts.lost for counts in self._fleet.counts.values() if counts.lost][-1]
            self._fleet.end(f"no engine of {self._fleet.name} is left; of the last, {last}")

    async def _watch(self, member: Member) -> Loss:
        """Wait until `member` is lost, and ask it now and then whether it lives."""
        probing = asyncio.create_task(self._probe(member))
        try:
            await asyncio.wait({member.lost})
            return member.lost.result()
        finally:
            probing.cancel()
            await asyncio.wait({probing})

    async def _probe(self, member: Member) -> None:
        timeout_s = self._section.probe_timeout_s
        while True:
            await asyncio.sleep(self._section.probe_interval_s)
            receiver = member.receiver
            loading, updates = receiver.loading, receiver.updates
            try:
                async with asyncio.timeout(timeout_s):
                    await member.engine.probe()
            except TimeoutError:
                # An engine that loads weights answers nothing, and has a deadline for that.
                if not (loading or receiver.loading or receiver.updates > updates):
                    reason = f"engine {member.name} did not answer within {timeout_s:g} s (engine.probe_timeout_s)"
                    self._fleet.lose(member.name, Loss(reason))
            except EngineDied as death:
                self._fleet.lose(member.name, Loss(str(death)))

    async def _replace(self, place: Place, reason: str) -> None:
        """Start an engine in `place`, or find that none may be started any more."""
        limit = self._section.max_replacements
        for tries in range(_TRIES):
            if self._replacements == limit:
                break
            self._replacements += 1
            name = place.name(self._fleet.name)
            self._warn(f"{reason}; {name} starts in its place ({self._replacements} of {limit} replacements)")
            self._fleet.coming[place.index] = f"{name} starts"
            await asyncio.sleep(tries * _PAUSE_S)
            try:
                await self._bring(place, name)
                return
            except Exception as error:  # noqa: BLE001 - a supervised boundary: engines fail in their own ways
                reason = f"engine {name} did not start: {error}"
        left = " and ".join(self._fleet.versions) or "nobody"
        why = f"engine.max_replacements = {limit}" if self._replacements == limit else f"{_TRIES} did not start"
        self._warn(f"{reason}; it is not replaced ({why}), {left} is left")

    async def _look_for(self, place: Place, reason: str) -> None:
        """Wait for the server of `place` to answer again, or for nobody else to serve either for too long."""
        loop = asyncio.get_running_loop()
        self._warn(f"{reason}; it is taken in again once {place.url} answers")
        name = place.name(self._fleet.name)
        self._fleet.coming[place.index] = f"{place.url} is looked for"
        served = loop.time()
        while loop.time() - served < self._section.start_timeout_s:
            await asyncio.sleep(self._section.probe_interval_s)
            try:
                await self._bring(place, name)
            except Exception as error:  # noqa: BLE001 - likewise
                _log.warning("engine %s at %s is not back: %s", name, place.url, error)
            else:
                self._warn(f"{place.url} answers again, and serves as {name}")
                return
            if self._fleet.versions:
                served = loop.time()

    async def _bring(self, place: Place, name: str) -> None:
        """Have an engine start, catch up with the newest weights and join."""
        engine = await self._start(name, place.url)
        try:
            await self._catch_up(engine.receiver)
        except BaseException:
            await engine.close()
            raise
        self._members[place] = self._fleet.join(engine)
