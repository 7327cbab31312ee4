"""A weight-transfer engine for vLLM that loads a mapped file, in vLLM's worker.

An update comes in two chunks. `verify` maps the file and checks it against its manifest and against the
served checkpoint's layout; the model is untouched until then. `load` puts it into the model.
vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from asyncopd.engines.vllm.arguments import BACKEND
from asyncopd.records import Manifest, WeightFile
from asyncopd.tensors.mapped import TornWeights, map_tensors


@dataclass
class MappedInit(WeightTransferInitInfo):
    """Sender and receiver agree on nothing beforehand."""


@dataclass
class MappedUpdate(WeightTransferUpdateInfo):
    """A chunk: with a manifest (as plain containers) it verifies, without one it loads what was verified."""

    manifest: dict[str, Any] | None = None


class MappedWeightTransferEngine(WeightTransferEngine[MappedInit, MappedUpdate]):
    """Loads Hugging Face tensors from a mapped file by layerwise reload."""

    init_info_cls = MappedInit
    update_info_cls = MappedUpdate
    supports_draft_weight_update = False

    _verified: list[tuple[str, torch.Tensor]]

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        _end_with_parent()

    def init_transfer_engine(self, init_info: MappedInit) -> None:
        """Nothing to set up: a manifest says all."""

    def start_weight_update(self) -> None:
        self._verified = []

    def receive_weights(self, update_info: MappedUpdate) -> None:
        if update_info.manifest is not None:
            manifest = msgspec.convert(update_info.manifest, Manifest)
            self._check_layout(manifest.files[-1])
            self._verified = list(map_tensors(manifest.files[-1]))
            return
        initialize_layerwise_reload(self.model)
        self.model.load_weights(iter(self._verified))  # type: ignore[operator]
        finalize_layerwise_reload(self.model, self.model_config)
        self._verified = []
        if self.model_config.hf_text_config.tie_word_embeddings:
            self._repack_heads()

    def finish_weight_update(self) -> None:
        """Nothing is left to do: `load` finished the model."""

    def shutdown(self) -> None:
        self._verified = []

    def _check_layout(self, weights: WeightFile) -> None:
        # vLLM accepts a partial set without an error, and then serves garbage from half-filled fused modules.
        expected = _checkpoint_shapes(Path(self.model_config.model))
        if self.model_config.hf_text_config.tie_word_embeddings:
            expected.pop("lm_head.weight", None)
        found = {entry.name: entry.shape for entry in weights.tensors}
        if self.model_config.hf_text_config.tie_word_embeddings:
            found.pop("lm_head.weight", None)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise TornWeights(
                    f"{weights.path}: {name} has shape {found.get(name, 'none')}, "
                    f"the checkpoint served has {expected.get(name, 'none')}"
                )

    def _repack_heads(self) -> None:
        # A tied head keeps a packed copy of the embedding, which a reload of the embedding alone leaves stale.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


def _end_with_parent() -> None:
    """End this process when its parent does: vLLM's core outlives a parent that is killed, and idles for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _checkpoint_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def register() -> None:
    """Make the engine known to vLLM, once a process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, MappedWeightTransferEngine)
