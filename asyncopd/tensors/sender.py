"""The learner's end of a weight update: it sends what it is ordered to, in the form it is ordered in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from asyncopd.records import SendOrder, WeightFile
from asyncopd.tensors.mapped import write_tensors


class Sender:
    """Lives beside a learner, one for all its publishes."""

    def send(self, order: SendOrder, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> WeightFile:
        """Send `named_tensors`, the weights of `order.version` in serving dtype, and say what was sent."""
        return write_tensors(Path(order.path), order.version, named_tensors)
