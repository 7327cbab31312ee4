"""The learner's end of NCCL broadcasts, by vLLM's own trainer class. Not yet verified on hardware.

vLLM's class drives the worker's end of an update through a client; ours only waits at doors of the rendezvous, as
the workers are driven by the update protocol. What NCCL waits for cannot be interrupted: so every member is at the
door before anybody enters it, and whoever still hangs there is ended from outside, with its process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import torch
from torch.distributed import TCPStore
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from asyncopd.records import WeightFile
from asyncopd.tensors.broadcast import BroadcastSender
from asyncopd.tensors.membership import Membership
from asyncopd.tensors.rendezvous import Rendezvous, announce, meet

NamedTensors = Iterable[tuple[str, torch.Tensor]]

_BUFFER_BYTES = 256 * 2**20  # of GPU memory, twice at each end; vLLM's own default is a GiB


class NcclSender(BroadcastSender):
    """Sends the learner's tensors from where they are; a version that it holds goes by way of the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._membership: Membership[Trainer] = Membership()

    def _send(self, rendezvous: Rendezvous, weights: WeightFile, fresh: list[tuple[str, torch.Tensor]] | None) -> None:
        with self._membership.at(rendezvous) as store:
            announce(store, rendezvous, weights)
            if self._membership.group is None:
                self._membership.group = Trainer(store, rendezvous)
            self._membership.group.send(store, rendezvous, weights, self._on_device if fresh is None else lambda: fresh)

    def _on_device(self) -> NamedTensors:
        device = torch.accelerator.current_accelerator()
        return ((name, tensor.to(device)) for name, tensor in self._held.tensors())


class Trainer:
    """vLLM's sender in one group."""

    def __init__(self, store: TCPStore, rendezvous: Rendezvous) -> None:
        self._doors = Doors(store, rendezvous)
        meet(store, rendezvous, "joining")
        here = NCCLTrainerInitInfo(
            master_address=rendezvous.own_address(),
            master_port=get_open_port(),
            world_size=rendezvous.members,
            packed_buffer_size_bytes=_BUFFER_BYTES,
            rank=0,
        )
        self._source = Source()
        self._engine: TrainerWeightTransferEngine[Any] = WeightTransferTrainerFactory.trainer_init(
            here, client=self._doors, source=self._source
        )

    def send(
        self, store: TCPStore, rendezvous: Rendezvous, weights: WeightFile, tensors: Callable[[], NamedTensors]
    ) -> None:
        """Send `tensors` once all workers are ready to take them into their models; return once they did."""
        self._doors.store, self._doors.rendezvous = store, rendezvous
        self._source.weights, self._source.tensors = weights, tensors
        self._engine.send_weights()


class Source(WeightSource):
    """The tensors of one update, as vLLM wants to have them."""

    weights: WeightFile
    tensors: Callable[[], NamedTensors]

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(e.name, getattr(torch, e.dtype), e.shape) for e in self.weights.tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors())


class Doors:
    """Implements vLLM's `VLLMWeightSyncClient`: what it would ask of an engine, the workers do by themselves."""

    def __init__(self, store: TCPStore, rendezvous: Rendezvous) -> None:
        self.store = store
        self.rendezvous = rendezvous

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Tell the workers, who wait for it, how they join."""
        self.store.set(f"{self.rendezvous.update}/joining", msgspec.json.encode(init_info).decode())

    def start_weight_update(self) -> None:
        """Wait until every worker is about to take the tensors in, behind the freeze."""
        meet(self.store, self.rendezvous)

    def update_weights(self, update_info: Any) -> None:
        """Nothing to ask: workers know the layout from the manifest."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Wait until every worker has a whole model again."""
        meet(self.store, self.rendezvous, "done")
