"""Publishing weights through files that every engine can read.

Invariants:
- engines generate while the sender writes, and while they prepare;
- the files that lead to the newest version stay until a later chain of files is published, and the chain before
  them while engines may still load the newest, so that an engine that comes late finds what it needs;
- no file is written over one that may be read;
- one publish or catch-up runs at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from fsspec.core import url_to_fs

from asyncopd.records import Manifest, PublishReport, SendOrder, Version
from asyncopd.seams import WeightReceiver, WeightSource
from asyncopd.weights.protocol import Update, within

_log = logging.getLogger(__name__)


class Directory(Protocol):
    """Where files of weights lie: on this machine, or at a URL. Nobody else writes there."""

    @property
    def path(self) -> Path | str: ...

    def close(self) -> None: ...


class FileWeightSync:
    """Implements `seams.WeightSync` with files.

    `receivers` gives those of the engines alive now. All tensors go in the format `dense`; with `deltas`, what
    changed goes alone where the learner finds that worth it, until a chain has `keyframe_every` files or its deltas
    have more bytes than all tensors. The sender may take `timeout_s` seconds, and so may each phase after it.
    """

    def __init__(
        self,
        receivers: Callable[[], Sequence[WeightReceiver]],
        directory: Directory,
        timeout_s: float,
        *,
        dense: Literal["mapped", "safetensors"] = "mapped",
        deltas: bool = False,
        keyframe_every: int = 1,
    ) -> None:
        self._receivers = receivers
        self._directory = directory
        self._timeout_s = timeout_s
        self._dense: Literal["mapped", "safetensors"] = dense
        self._deltas = deltas
        self._keyframe_every = keyframe_every
        self._one_at_a_time = asyncio.Lock()
        self._newest: Manifest | None = None
        self._numbers = itertools.count()

    async def publish(self, version: Version, source: WeightSource) -> PublishReport:
        """Bring every engine to `version`; the report names those that did not come. Raises `PublishFailed`."""
        clock = asyncio.get_running_loop().time
        async with self._one_at_a_time:
            await self._tidy()
            started = clock()
            manifest = await self._send(version, source)
            send_seconds = clock() - started
            update = Update(manifest, self._receivers(), self._timeout_s)
            await update.run()
            await self._tidy()
        return PublishReport(
            version=version,
            send_seconds=send_seconds,
            prepare_seconds=update.prepare_seconds,
            pause_seconds=update.pause_seconds,
            bytes=manifest.files[-1].nbytes,
            dense_bytes=manifest.files[0].nbytes,
            failed=update.failed,
        )

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

    async def _send(self, version: Version, source: WeightSource) -> Manifest:
        order = self._order(version)
        async with within(self._timeout_s, "the learner", "send", version):
            file = await source.send(order)
            before = () if file.base is None or self._newest is None else self._newest.files
            self._newest = Manifest(files=(*before, file))
        return self._newest

    def _order(self, version: Version) -> SendOrder:
        path = f"{self._directory.path}/weights-{next(self._numbers)}"  # a version may be sent twice
        if not self._deltas:
            return SendOrder(version=version, path=path, format=self._dense)
        return SendOrder(version=version, path=path, format="delta", base=self._base(version), dense=self._dense)

    def _base(self, version: Version) -> Version | None:
        """Return what a delta to `version` may change, None where all tensors are due."""
        if self._newest is None or self._newest.version == version:
            return None
        keyframe, *deltas = self._newest.files
        if len(self._newest.files) >= self._keyframe_every or sum(d.nbytes for d in deltas) > keyframe.nbytes:
            return None
        return self._newest.version

    async def _tidy(self) -> None:
        """Remove all files but those of the newest chain; those of a send that was given up may be among them."""
        keep = {posixpath.basename(file.path) for file in self._newest.files} if self._newest else set()
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(_remove_others, str(self._directory.path), keep)
        except (OSError, TimeoutError) as error:
            _log.warning("old weights in %s are not removed: %s", self._directory.path, error)


def _remove_others(directory: str, keep: set[str]) -> None:
    filesystem, name = url_to_fs(directory)
    filesystem.invalidate_cache(name)
    for path in filesystem.ls(name, detail=False):
        if posixpath.basename(path) not in keep:
            filesystem.rm_file(path)
