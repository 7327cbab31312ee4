"""The weights of one vLLM worker, which follow the learner's from version to version.

Invariants:
- the model changes in `load` alone, which vLLM calls between two steps of generation;
- preparations run one after the other, in a thread of their own, and only the newest can be loaded;
- after a load that failed the model is not whole, and the next one brings in all tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from vllm.config import VllmConfig

from asyncopd.engines.vllm.install import Install, by_reload, by_replacement, replaceable
from asyncopd.engines.vllm.layout import Layout
from asyncopd.engines.vllm.modules import ModuleMap
from asyncopd.engines.vllm.update_state import UpdateState
from asyncopd.records import Manifest, Version
from asyncopd.tensors.shadow import Shadow


class NotPrepared(RuntimeError):
    """The version to load is not the one prepared; the message names both. The model is as before."""


@dataclass(frozen=True)
class Prepared:
    """All that a load needs."""

    version: Version
    checksum: int
    install: Install


class WeightFollower:
    """Follows for `model`, which serves the checkpoint that vLLM was started from."""

    def __init__(self, model: torch.nn.Module, config: VllmConfig) -> None:
        self._model = model
        self._config = config
        self._layout = Layout(config.model_config)
        self._shadow = Shadow()
        self._changed: dict[str, None] = {}  # in the shadow, since the model was loaded; an ordered set
        self._thread = ThreadPoolExecutor(1, "prepare-weights")
        self._asked: Version | None = None
        self._prepared: Future[Prepared] | None = None
        self._loaded: tuple[Version, int] | None = None
        self._whole = True

    def prepare(self, manifest: Manifest) -> None:
        """Begin to prepare the version of `manifest`; `state` tells the end. What was prepared before is dropped."""
        if self._prepared is not None:
            self._prepared.cancel()
        self._asked = manifest.version
        self._prepared = self._thread.submit(self._prepare, manifest)

    @torch.no_grad()
    def _prepare(self, manifest: Manifest) -> Prepared:
        self._layout.check(manifest)
        changed = self._shadow.follow(manifest)
        self._changed |= dict.fromkeys(self._layout.loadable(changed))
        names = self._changed if self._whole else self._layout.loadable(self._shadow.tensors)
        return Prepared(manifest.version, manifest.checksum, self._build(self._shadow.tensors, list(names)))

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
        self._changed = {}

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
        self._thread.shutdown(wait=False, cancel_futures=True)
