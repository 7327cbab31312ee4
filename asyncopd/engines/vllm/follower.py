"""The weights of one vLLM worker, which follow the learner's from version to version.

Invariants:
- the model changes in `load` alone, which vLLM calls between two steps of generation;
- a preparation runs in a thread, and only the newest can be loaded; one that is superseded while it runs, or hangs,
  keeps the copy of the weights that it may be changing, and the next starts afresh;
- after a load that failed the model is not whole, and the next one brings in all tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import torch
from vllm.config import VllmConfig

from asyncopd.engines.vllm.install import Install, by_reload, by_replacement, replaceable
from asyncopd.engines.vllm.layout import Layout
from asyncopd.engines.vllm.modules import ModuleMap
from asyncopd.engines.vllm.nccl import NcclReceiver, by_nccl
from asyncopd.engines.vllm.update_state import UpdateState
from asyncopd.records import Manifest, Version
from asyncopd.tensors.base import CheckpointTensors
from asyncopd.tensors.broadcast import BroadcastReceiver
from asyncopd.tensors.received import Received, weights_of
from asyncopd.tensors.shadow import Shadow


class OtherWeights(RuntimeError):
    """The weights at hand are not those of the manifest; the message says how they differ. The model is as before."""


class NotPrepared(RuntimeError):
    """The version to load is not the one prepared; the message names both. The model is as before."""


@dataclass
class Line:
    """What one preparation after the other builds on: `changed` names (an ordered set) are newer than in the model."""

    shadow: Shadow
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "prepare-weights"))
    changed: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """All that a load needs."""

    version: Version
    checksum: int
    own: list[str]
    install: Install


class WeightFollower:
    """Follows for `model` on `device`, which serves the checkpoint that vLLM was started from."""

    def __init__(self, model: torch.nn.Module, config: VllmConfig, device: torch.device) -> None:
        self._model = model
        self._config = config
        self._device = device
        self._layout = Layout(config.model_config)
        self._line = Line(self._empty_shadow())
        self._nccl: NcclReceiver | None = None
        self._asked: Version | None = None
        self._prepared: Future[Prepared] | None = None
        self._loaded: tuple[Version, int] | None = None
        self._whole = True
        self._own: list[str] = []  # weights that the model may have otherwise than its checkpoint

    @cached_property
    def _received(self) -> Received:
        dtype = self._config.model_config.dtype
        assert isinstance(dtype, torch.dtype), "vLLM resolves names when it starts"
        return Received(CheckpointTensors(self._layout.directory()), dtype)

    def prepare(self, manifest: Manifest) -> None:
        """Begin to prepare the version of `manifest`; `state` tells the end. What was prepared before is dropped."""
        if self._prepared is not None and not self._prepared.done():
            self._line.thread.shutdown(wait=False)
            self._line = Line(self._empty_shadow())
        self._asked = manifest.version
        self._prepared = self._line.thread.submit(self._prepare, manifest, self._line)

    def _empty_shadow(self) -> Shadow:
        return Shadow(BroadcastReceiver(self._config.parallel_config.rank))

    @torch.no_grad()
    def _prepare(self, manifest: Manifest, line: Line) -> Prepared:
        self._layout.check(manifest)
        if by_nccl(manifest.files[-1]):
            return self._prepare_nccl(manifest)
        changed = line.shadow.follow(manifest)
        arrived = line.shadow.tensors
        weights = self._received.weights(arrived)
        line.changed |= dict.fromkeys(self._layout.loadable(weights_of(arrived, changed)))
        own = self._layout.loadable(weights_of(arrived, arrived))
        left = dict.fromkeys(name for name in self._own if name not in own)  # an adapter before this one changed them
        names = list(line.changed | left) if self._whole else self._layout.loadable(weights)
        install = self._build(weights, names)
        # Only now, so that it speaks of what was copied; it also tells a version that was sent before as another one.
        if (checksum := line.shadow.checksum()) != manifest.checksum:
            line.shadow = self._empty_shadow()
            raise OtherWeights(
                f"the tensors of version {manifest.version} here have the checksum {checksum:016x}, the manifest says "
                f"{manifest.checksum:016x}: the file was changed, or other weights were sent as this version before"
            )
        return Prepared(manifest.version, checksum, own, install)

    def _prepare_nccl(self, manifest: Manifest) -> Prepared:
        """Join the group. Nothing is had to check before it is in the model; the learner's word stands for it."""
        if self._nccl is None:
            self._nccl = NcclReceiver(self._model, self._config, self._device)
        install = self._nccl.prepare(manifest.files[-1])
        own = self._layout.loadable([entry.name for entry in manifest.files[-1].tensors])
        return Prepared(manifest.version, manifest.checksum, own, install)

    def _build(self, tensors: Mapping[str, torch.Tensor], names: list[str]) -> Install:
        modules = ModuleMap(self._model, self._layout.loadable(tensors))
        if replaceable(self._config):
            return by_replacement(self._model, modules, tensors, names)
        return by_reload(self._model, modules, tensors, names, self._config.model_config)

    def load(self, version: Version) -> None:
        """Bring in what was prepared. Raises `NotPrepared`, and whatever vLLM raises half-way."""
        state = self.state()
        if self._prepared is None or not state.ready or state.asked != version:
            raise NotPrepared(f"version {version} was to be loaded, the preparation of {state.asked} is the newest")
        prepared, self._prepared = self._prepared.result(), None
        self._whole = False
        prepared.install()
        self._whole = True
        self._loaded = (prepared.version, prepared.checksum)
        self._own = prepared.own
        self._line.changed = {}

    def state(self) -> UpdateState:
        """Say where this worker stands."""
        ended = self._prepared is not None and self._prepared.done()
        error = self._prepared.exception() if self._prepared is not None and ended else None
        version, checksum = self._loaded or (None, None)
        return UpdateState(
            asked=self._asked,
            ready=ended and error is None,
            error=None if error is None else f"{type(error).__name__}: {error}",
            loaded=version,
            checksum=checksum,
            whole=self._whole,
        )

    def close(self) -> None:
        """Prepare nothing any more."""
        self._line.thread.shutdown(wait=False, cancel_futures=True)
