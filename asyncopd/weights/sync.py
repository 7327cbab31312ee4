"""Publishing weights through files that every engine can read.

Invariants:
- engines generate while the sender writes, and while they prepare;
- the files that lead to the newest version stay until the next one is published, so that an engine that comes
  late finds them, and no file is written over one that may be read;
- one publish or catch-up runs at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncopd.records import Manifest, PublishReport, SendOrder, Version
from asyncopd.seams import WeightReceiver, WeightSource
from asyncopd.weights.protocol import Update, within
from asyncopd.weights.shm import OwnedDirectory


class ShmWeightSync:
    """Implements `seams.WeightSync` with mapped files on this machine.

    `receivers` gives those of the engines alive now. `directory` is where the files may lie. The sender may take
    `timeout_s` seconds, and so may each phase after it.
    """

    def __init__(self, receivers: Callable[[], Sequence[WeightReceiver]], directory: Path, timeout_s: float) -> None:
        self._receivers = receivers
        self._directory = OwnedDirectory(directory)
        self._timeout_s = timeout_s
        self._one_at_a_time = asyncio.Lock()
        self._newest: Manifest | None = None
        self._numbers = itertools.count()

    async def publish(self, version: Version, source: WeightSource) -> PublishReport:
        """Bring every engine to `version`; the report names those that did not come. Raises `PublishFailed`."""
        clock = asyncio.get_running_loop().time
        async with self._one_at_a_time:
            started = clock()
            manifest = await self._send(version, source)
            send_seconds = clock() - started
            update = Update(manifest, self._receivers(), self._timeout_s)
            await update.run()
        return PublishReport(
            version=version,
            send_seconds=send_seconds,
            prepare_seconds=update.prepare_seconds,
            pause_seconds=update.pause_seconds,
            bytes=manifest.files[-1].nbytes,
            dense_bytes=manifest.files[0].nbytes,
            failed=update.failed,
        )

    async def _send(self, version: Version, source: WeightSource) -> Manifest:
        path = self._directory.path / f"weights-{next(self._numbers)}"  # a version may be sent twice
        order = SendOrder(version=version, path=str(path), format="mapped")
        async with within(self._timeout_s, "the learner", "send", version):
            manifest = Manifest(files=(await source.send(order),))
        superseded, self._newest = self._newest, manifest
        for file in superseded.files if superseded else ():
            os.unlink(file.path)  # an engine that still maps it keeps its pages
        return manifest

    async def catch_up(self, receiver: WeightReceiver) -> Version | None:
        """Bring one engine to the newest version, None if nothing was published yet. Raises `PublishFailed`."""
        async with self._one_at_a_time:
            if self._newest is None:
                return None
            await Update(self._newest, [receiver], self._timeout_s).run()
            return self._newest.version

    def close(self) -> None:
        """Remove the files' directory."""
        self._directory.close()
