"""Choosing how weights travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

from asyncopd.config.engine import EngineSection
from asyncopd.config.weights import WeightsSection
from asyncopd.errors import UserError
from asyncopd.seams import WeightReceiver, WeightSync
from asyncopd.tensors.rendezvous import check_host
from asyncopd.weights.collective import CollectiveWeightSync
from asyncopd.weights.remote import RemoteDirectory
from asyncopd.weights.shm import OwnedDirectory, roomy_directory
from asyncopd.weights.sync import Directory, FileWeightSync


def open_sync(
    weights: WeightsSection,
    engine: EngineSection,
    receivers: Callable[[], Sequence[WeightReceiver]],
    *,
    run_directory: Path,
    weights_bytes: int,
    learner_timeout_s: float,
) -> WeightSync:
    """Return what the configuration asks for; `receivers` gives those of the engines alive now.

    `weights_bytes` are those of all tensors, at most. Raises `UserError` where the files' directory cannot be made.
    """
    use = choose(weights, engine)
    if use in ("gloo", "nccl"):
        return CollectiveWeightSync(
            receivers,
            transport=use,
            host=weights.host,
            workers=engine.options.get("tensor_parallel_size", 1) * engine.options.get("pipeline_parallel_size", 1),
            timeout_s=engine.update_timeout_s,
            learner_timeout_s=learner_timeout_s,
        )
    return FileWeightSync(
        receivers,
        _directory(weights, use, run_directory, weights_bytes),
        engine.update_timeout_s,
        dense="mapped" if use == "shm" else "safetensors",
        deltas=weights.encoding == "delta",
        keyframe_every=weights.keyframe_every,
    )


def check_weights(weights: WeightsSection, engine: EngineSection) -> None:
    """Raise `UserError` for a way of weights that cannot work on this machine, or with this engine."""
    use = choose(weights, engine)
    if use in ("gloo", "nccl"):
        check_host(weights.host)
    if use == "nccl" and engine.use == "torch":
        raise UserError("weights.use nccl", "the torch engine receives nothing by it", "use gloo, or shm")
    if use == "nccl" and not torch.cuda.is_available():
        raise UserError("weights.use nccl", "there is no NVIDIA GPU here", "use gloo, or shm on one machine")


def choose(weights: WeightsSection, engine: EngineSection) -> Literal["shm", "disk", "gloo", "nccl"]:
    """Say what `auto` is: files of this machine, or safetensors where engines may be on others."""
    if weights.use != "auto":
        return weights.use
    return "disk" if engine.urls or weights.url else "shm"


def _directory(weights: WeightsSection, use: str, run_directory: Path, weights_bytes: int) -> Directory:
    if weights.dir is not None:
        return _configured_directory(weights.dir, run_directory, remote=weights.url is not None)
    if use == "disk":
        return OwnedDirectory(run_directory)
    # The newest chain and the next file of all tensors. A chain's deltas outgrow its keyframe by half of it at most.
    copies = 3.5 if weights.encoding == "delta" else 2
    return OwnedDirectory(roomy_directory(run_directory, int(copies * weights_bytes)))


def _configured_directory(where: str, run_directory: Path, *, remote: bool) -> Directory:
    try:
        return RemoteDirectory(where, run_directory) if remote else OwnedDirectory(Path(where))
    except (OSError, ValueError, ImportError) as error:  # fsspec's, for schemes it does not know or lacks the parts for
        raise UserError("weights.dir", f"{where} cannot be used ({error})", "name one that can be written") from error
