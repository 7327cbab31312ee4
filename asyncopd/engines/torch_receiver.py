"""The receiving side of a weight update, for the reference engine."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from transformers import PreTrainedModel

from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.records import Manifest, Version
from asyncopd.tensors.broadcast import BroadcastReceiver
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.received import Received
from asyncopd.tensors.shadow import Shadow


class Sampler(Protocol):
    """What samples with the model, in a thread of its own."""

    async def drained(self) -> None:
        """Wait until no turn is under way."""
        ...

    async def call(self, function: Any, *arguments: Any) -> Any:
        """Run `function` in the thread."""
        ...


class TorchReceiver:
    """Implements `seams.WeightReceiver` for one `TorchEngine`, whose `model` its `sampler` uses."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        sampler: Sampler,
        received: Received,
        gate: Gate,
        lifeline: Lifeline,
    ) -> None:
        self.name = name
        self._model = model
        self._sampler = sampler
        self._gate = gate
        self._lifeline = lifeline
        self._weights = received
        self._broadcasts = BroadcastReceiver()
        self._shadow = Shadow(self._broadcasts)
        self._received: Version | None = None

    async def freeze(self) -> None:
        """Let no request in, and wait for the ones under way to finish."""
        await self._gate.shut()
        await self._lifeline.hold(self._sampler.drained())

    async def prepare(self, manifest: Manifest) -> None:
        """Take in what comes by broadcast; files are read later, by the thread that samples."""
        if manifest.files[-1].format == "broadcast":
            await self._lifeline.hold(asyncio.to_thread(self._shadow.follow, manifest))

    async def receive(self, manifest: Manifest) -> None:
        """Load the weights of `manifest`; a file refused before loading leaves the old weights in service."""
        self._received = None
        await self._lifeline.hold(self._sampler.call(self._load, manifest))
        self._received = manifest.version

    def _load(self, manifest: Manifest) -> None:
        self._shadow.follow(manifest)
        found = dict(self._weights.weights(self._shadow.tensors))
        expected = dict(self._model.named_parameters())
        for name in sorted(expected.keys() | found.keys() - self._model.all_tied_weights_keys.keys()):
            if name not in found or name not in expected or found[name].shape != expected[name].shape:
                raise TornWeights(f"{manifest.files[-1].path}: {name} is not as in the checkpoint that is served")
        self._gate.whole = False
        for name, parameter in expected.items():
            parameter.copy_(found[name])
        if manifest.files[-1].base is None:
            # A delta may never follow, and what was mapped or received would stay in memory.
            self._shadow = Shadow(self._broadcasts)

    async def commit(self, version: Version) -> None:
        """Serve `version`, which must have been received."""
        assert self._received == version, f"commit of {version} after receiving {self._received}"
        self._gate.commit(version)

    async def thaw(self) -> None:
        """Let requests in again; after an update begun and not committed, they wait for the next one."""
        self._gate.open()
