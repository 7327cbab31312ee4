"""Publishing weights to every engine: send, then freeze, receive, commit and thaw, all engines together.

Invariants:
- engines are not paused while the sender writes;
- no engine enters a phase before all have finished the one before;
- every frozen engine is thawed, whatever failed; one that began to load and did not commit stays unusable,
  by its receiver, until a publish succeeds: every publish sends everything;
- every await has a deadline, and one publish runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from asyncopd.records import Manifest, PublishReport, Version
from asyncopd.seams import WeightReceiver, WeightSource
from asyncopd.weights.shm import OwnedDirectory


class PublishFailed(RuntimeError):
    """A publish did not reach every engine; the message names the engine, the phase and the cause."""


class ShmWeightSync:
    """Implements `seams.WeightSync` with one mapped file on this machine.

    `directory` is where the file may lie. The sender may take `timeout_s`
    seconds, and so may everything from freeze to commit, and thaw.
    """

    def __init__(self, receivers: Sequence[WeightReceiver], directory: Path, timeout_s: float) -> None:
        self._receivers = tuple(receivers)
        self._directory = OwnedDirectory(directory)
        self._timeout_s = timeout_s
        self._one_at_a_time = asyncio.Lock()

    async def publish(self, version: Version, source: WeightSource) -> PublishReport:
        """Bring every engine to `version`. Raises `PublishFailed`."""
        async with self._one_at_a_time:
            path = self._directory.path / "weights"
            try:
                return await self._publish(version, source, str(path))
            finally:
                path.unlink(missing_ok=True)  # every receiver has its copy: memory for the learner

    async def _publish(self, version: Version, source: WeightSource, path: str) -> PublishReport:
        clock = asyncio.get_running_loop().time
        started = clock()
        manifest = await self._send(version, source, path)
        sent = clock()
        try:
            await self._update(version, manifest, sent + self._timeout_s)
        except BaseException:
            with contextlib.suppress(PublishFailed):  # the first cause is the one to report
                await self._thaw(version)
            raise
        await self._thaw(version)
        return PublishReport(
            version=version,
            send_seconds=sent - started,
            pause_seconds=clock() - sent,
            bytes=sum(entry.nbytes for entry in manifest.tensors),
        )

    async def _send(self, version: Version, source: WeightSource, path: str) -> Manifest:
        async with self._phase("the learner", "send", version, asyncio.get_running_loop().time() + self._timeout_s):
            return await source.send(version, path)

    async def _update(self, version: Version, manifest: Manifest, deadline: float) -> None:
        await self._all("freeze", lambda receiver: receiver.freeze(), version, deadline)
        await self._all("receive", lambda receiver: receiver.receive(manifest), version, deadline)
        await self._all("commit", lambda receiver: receiver.commit(version), version, deadline)

    async def _thaw(self, version: Version) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        await self._all("thaw", lambda receiver: receiver.thaw(), version, deadline)

    async def _all(
        self, phase: str, action: Callable[[WeightReceiver], Awaitable[None]], version: Version, deadline: float
    ) -> None:
        async def one(receiver: WeightReceiver) -> None:
            async with self._phase(f"engine {receiver.name}", phase, version, deadline):
                await action(receiver)

        results = await asyncio.gather(*map(one, self._receivers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @contextlib.asynccontextmanager
    async def _phase(self, who: str, phase: str, version: Version, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError as error:
            raise PublishFailed(
                f"{who}: {phase} of version {version} did not end within {self._timeout_s:g} s"
            ) from error
        except Exception as error:  # a supervised boundary: engines fail in their own ways
            raise PublishFailed(f"{who}: {phase} of version {version} failed: {error}") from error

    def close(self) -> None:
        """Remove the file's directory."""
        self._directory.close()
