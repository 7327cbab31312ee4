"""The learner's end of a weight update: it sends what it is ordered to, in the form it is ordered in."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from asyncopd.records import SendOrder, Version, WeightFile
from asyncopd.tensors.broadcast import BroadcastSender
from asyncopd.tensors.checkpoint import write_checkpoint
from asyncopd.tensors.delta_file import write_delta
from asyncopd.tensors.mapped import write_tensors
from asyncopd.tensors.rendezvous import Rendezvous, Transport
from asyncopd.tensors.shadow import Shadow

NamedTensors = Iterable[tuple[str, torch.Tensor]]

_LARGEST_DELTA = 0.5
"""Of all tensors' bytes. A delta costs both sides more work per byte, and the chain it joins grows."""


class Sender:
    """Lives beside a learner, one for all its publishes; keeps a copy of the weights once asked for a delta."""

    def __init__(self) -> None:
        self._shadow = Shadow()
        self._broadcasts: dict[str, BroadcastSender] = {}

    def holds(self, order: SendOrder) -> bool:
        """Tell whether what is ordered can be sent although the learner has moved on."""
        return order.format == "broadcast" and self._broadcast(order).holds(order.version)

    def send(self, order: SendOrder, named_tensors: NamedTensors) -> WeightFile:
        """Send `named_tensors`, the weights of `order.version` in serving dtype, and say what was sent.

        A file's name is `order.path` with its format for an ending. Raises `OSError` where it cannot be written.
        """
        match order.format:
            case "mapped" | "safetensors":
                return _write_dense(order.format, order.path, order.version, named_tensors)
            case "delta":
                return self._send_delta(order, named_tensors)
            case "broadcast":
                return self._broadcast(order).send(order, named_tensors)

    def _broadcast(self, order: SendOrder) -> BroadcastSender:
        transport = Rendezvous.parse(order.path).transport
        if transport not in self._broadcasts:
            self._broadcasts[transport] = _make_broadcast(transport)
        return self._broadcasts[transport]

    def _send_delta(self, order: SendOrder, named_tensors: NamedTensors) -> WeightFile:
        shadow = self._shadow
        if shadow.version is None or shadow.version != order.base:
            shadow.take(order.version, named_tensors)
        else:
            limit = int(_LARGEST_DELTA * sum(tensor.nbytes for tensor in shadow.tensors.values()))
            delta = shadow.diff(order.version, named_tensors, limit)
            if delta is not None:
                return write_delta(f"{order.path}.delta", delta)
        return _write_dense(order.dense, order.path, order.version, shadow.tensors.items())


def _make_broadcast(transport: Transport) -> BroadcastSender:
    if transport == "gloo":
        return BroadcastSender()
    from asyncopd.tensors.nccl import NcclSender  # it needs vLLM, which no other learner does

    return NcclSender()


def _write_dense(form: str, path: str, version: Version, named_tensors: NamedTensors) -> WeightFile:
    write = write_checkpoint if form == "safetensors" else write_tensors
    return write(f"{path}.{form}", version, named_tensors)
