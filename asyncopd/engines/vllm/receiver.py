"""The receiving side of a weight update, for vLLM in this process or behind a server.

Invariants:
- generation goes on until `freeze`, and all that reads files comes before it;
- what is refused before the model is touched leaves the old weights in service; a model that was touched stays
  paused until it is whole again and committed;
- a version is committed only where every worker says that it loaded exactly the tensors of the manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, Protocol

import msgspec

from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.vllm.update_state import UpdateState
from asyncopd.records import Manifest, Version

KvPolicy = Literal["keep", "recompute"]

_POLL_S = 0.01


class RefusedUpdate(RuntimeError):
    """An update is late, or a worker cannot come to its version; the message says why. The old weights serve on."""


class WrongWeights(RuntimeError):
    """A worker's weights are not those of the manifest; the engine stays paused until an update succeeds."""


class VllmControl(Protocol):
    """What the receiver asks of a running vLLM, under vLLM's own names; see `control.InProcess`."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def recompute(self) -> None:
        """Have requests under way compute all their keys and values again."""
        ...

    async def call(self, method: str, **arguments: str) -> list[Any]:
        """Call `method` of every worker."""
        ...

    async def start_update(self) -> None: ...

    async def update(self, info: dict[str, Any]) -> None: ...

    async def finish_update(self) -> None: ...

    async def label(self, version: str) -> None:
        """Have tokens sampled from here on carry `version`."""
        ...


class VllmReceiver:
    """Implements `seams.WeightReceiver` for the vLLM behind `control`, whose requests enter by `gate`."""

    def __init__(self, name: str, control: VllmControl, gate: Gate, lifeline: Lifeline, kv_policy: KvPolicy) -> None:
        self.name = name
        self.control = control
        self._gate = gate
        self._lifeline = lifeline
        self._kv_policy = kv_policy
        self._load: asyncio.Task[None] | None = None
        self._received: Version | None = None

    async def prepare(self, manifest: Manifest) -> None:
        """Have every worker fetch, verify and build the weights of `manifest`. Raises `RefusedUpdate`."""
        served, version = self._gate.version, manifest.version
        if version < served or (version == served and self._gate.whole):
            raise RefusedUpdate(f"version {version} is not newer than {served}, which engine {self.name} serves")
        await self._lifeline.hold(self._prepare(manifest))

    async def _prepare(self, manifest: Manifest) -> None:
        await self.control.call("prepare_weights", manifest=msgspec.json.encode(manifest).decode())
        while True:
            states = await self.states()
            for state in states:
                if state.asked != manifest.version:
                    raise RefusedUpdate(f"version {manifest.version} was superseded by {state.asked}")
                if state.error is not None:
                    raise RefusedUpdate(state.error)
            if all(state.ready for state in states):
                return
            await asyncio.sleep(_POLL_S)

    async def states(self) -> list[UpdateState]:
        """Ask every worker where it stands."""
        return msgspec.convert(await self.control.call("weights_state"), list[UpdateState])

    async def freeze(self) -> None:
        """Let no request in, and hold the ones under way with their keys and values."""
        await self._gate.shut()
        await self._lifeline.hold(self.control.pause())

    async def receive(self, manifest: Manifest) -> None:
        """Load what was prepared."""
        if self._load is not None:
            # Cut off by a deadline, it still runs in the worker, which refuses a second one beside it.
            await self._lifeline.hold(_ended(self._load))
        self._load = asyncio.create_task(self._load_prepared(manifest))
        self._load.add_done_callback(_retrieve)
        await self._lifeline.hold(_shielded(self._load))

    async def _load_prepared(self, manifest: Manifest) -> None:
        self._received = None
        await self.control.start_update()
        self._gate.whole = False
        try:
            await self.control.update({"version": str(manifest.version)})
        except Exception:
            self._gate.whole = await self._untouched()
            raise
        await self.control.finish_update()
        if self._kv_policy == "recompute":
            await self.control.recompute()
        for state in await self.states():
            if (state.loaded, state.checksum) != (manifest.version, manifest.checksum):
                raise WrongWeights(
                    f"engine {self.name} loaded version {state.loaded} with the checksum {state.checksum}, "
                    f"the manifest of version {manifest.version} says {manifest.checksum}"
                )
        self._received = manifest.version

    async def _untouched(self) -> bool:
        return all(state.whole and state.loaded in (None, self._gate.version) for state in await self.states())

    async def commit(self, version: Version) -> None:
        """Label the tokens sampled from here on with `version`, which must have been received."""
        assert self._received == version, f"commit of {version} after receiving {self._received}"
        await self._lifeline.hold(self.control.label(str(version)))
        self._gate.commit(version)

    async def thaw(self) -> None:
        """Go on; after an update that was begun and not committed, stay paused until one is."""
        try:
            if self._gate.whole:
                await self._lifeline.hold(self.control.resume())
        finally:
            self._gate.open()


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # known to who waits for it, unless the engine's death or a deadline came first


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


def _shielded(task: asyncio.Task[None]) -> Coroutine[Any, Any, None]:
    async def wait() -> None:
        await asyncio.shield(task)

    return wait()
