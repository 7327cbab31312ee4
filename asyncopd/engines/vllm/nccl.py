"""A worker's end of NCCL broadcasts, by vLLM's own engine, straight into the model. Not yet verified on hardware.

Invariants:
- a worker enters NCCL, which cannot be interrupted, only once every member stands at the same door;
- the model is untouched until the learner and all workers are ready, behind the freeze.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch
from torch.distributed import TCPStore
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from asyncopd.engines.vllm.install import Install
from asyncopd.records import WeightFile
from asyncopd.tensors.membership import Membership
from asyncopd.tensors.rendezvous import Rendezvous, meet, wait_on


def by_nccl(weights: WeightFile) -> bool:
    """Tell whether `weights` come by NCCL."""
    return weights.format == "broadcast" and Rendezvous.parse(weights.path).transport == "nccl"


class NcclReceiver:
    """For `model` on `device`; made in the thread that vLLM calls, used in any."""

    def __init__(self, model: torch.nn.Module, config: VllmConfig, device: torch.device) -> None:
        self._model = model
        self._config = config
        self._device = device
        self._membership: Membership[NCCLWeightTransferEngine] = Membership()

    def prepare(self, weights: WeightFile) -> Install:
        """Join the group that `weights.path` names; what is returned takes the tensors in. Raises `BroadcastBroken`."""
        engine = Rendezvous.parse(weights.path)
        rendezvous = engine.as_member(engine.rank + self._config.parallel_config.rank)
        with self._membership.at(rendezvous) as store:
            if self._membership.group is None:
                self._membership.group = self._join(store, rendezvous)
        return lambda: self._receive(rendezvous, weights)

    def _join(self, store: TCPStore, rendezvous: Rendezvous) -> NCCLWeightTransferEngine:
        engine = NCCLWeightTransferEngine(WeightTransferConfig(backend="nccl"), self._config, self._device, self._model)
        meet(store, rendezvous, "joining")
        key = f"{rendezvous.update}/joining"
        deadline = time.monotonic() + rendezvous.timeout_s
        while not store.check([key]):
            wait_on(store, rendezvous, deadline, "the learner did not say how to join")
        how: dict[str, Any] = msgspec.json.decode(store.get(key))
        torch.accelerator.set_device_index(self._device)  # of this thread
        # vLLM numbers the workers of one engine; the group those of all.
        how["rank_offset"] = rendezvous.rank - self._config.parallel_config.rank
        engine.init_transfer_engine(engine.parse_init_info(how))
        return engine

    def _receive(self, rendezvous: Rendezvous, weights: WeightFile) -> None:
        with self._membership.at(rendezvous) as store:
            engine = self._membership.group
            assert engine is not None, "joined by prepare"
            meet(store, rendezvous)
            engine.start_weight_update()
            engine.update_weights(
                {
                    "names": [entry.name for entry in weights.tensors],
                    "dtype_names": [entry.dtype for entry in weights.tensors],
                    "shapes": [list(entry.shape) for entry in weights.tensors],
                }
            )
            engine.finish_weight_update()
            meet(store, rendezvous, "done")
