"""A weight-transfer engine for vLLM, in vLLM's worker; it loads what `follower` prepared while vLLM generated.

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from asyncopd.engines.vllm.arguments import BACKEND
from asyncopd.engines.vllm.follower import WeightFollower
from asyncopd.records import Version


@dataclass
class PreparedInit(WeightTransferInitInfo):
    """Sender and receiver agree on nothing beforehand."""


@dataclass
class PreparedUpdate(WeightTransferUpdateInfo):
    """Asks for the version that was prepared."""

    version: str


class PreparedWeightTransferEngine(WeightTransferEngine[PreparedInit, PreparedUpdate]):
    """Loads what its `follower` prepared."""

    init_info_cls = PreparedInit
    update_info_cls = PreparedUpdate
    supports_draft_weight_update = False

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self.follower = WeightFollower(model, vllm_config, device)
        _end_with_parent()

    def init_transfer_engine(self, init_info: PreparedInit) -> None:
        """Nothing to set up: a manifest says all."""

    def start_weight_update(self) -> None:
        """Nothing to do: the model is touched by the load alone."""

    def receive_weights(self, update_info: PreparedUpdate) -> None:
        self.follower.load(Version.parse(update_info.version))

    def finish_weight_update(self) -> None:
        """Nothing is left to do: the load finished the model."""

    def shutdown(self) -> None:
        self.follower.close()


def follower_of(engine: WeightTransferEngine[Any, Any] | None) -> WeightFollower:
    """Return the follower behind vLLM's weight-transfer engine. Raises `TypeError` where that is another one."""
    if not isinstance(engine, PreparedWeightTransferEngine):
        raise TypeError(f"vLLM was started with the weight transfer {type(engine).__name__}, not with {BACKEND}")
    return engine.follower


def _end_with_parent() -> None:
    """End this process when its parent does: vLLM's core outlives a parent that is killed, and idles for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def register() -> None:
    """Make the engine known to vLLM, once a process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, PreparedWeightTransferEngine)
