"""Directories that appear whole or not at all, and tensors in them."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedModel

from asyncopd.disk import sync
from asyncopd.errors import UserError
from asyncopd.models.permissions import follow_umask


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory that becomes `target` when the block ends without an exception.

    All files are durable before the name is. A former `target` is replaced. Raises `UserError` if the disk refuses.
    """
    try:
        with _atomically(target) as fresh:
            yield fresh
    except (OSError, SafetensorError) as error:
        raise UserError(str(target), f"cannot be written ({error})", "make room for it, then resume") from error


@contextmanager
def _atomically(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        fresh, former = Path(scratch, "new"), Path(scratch, "old")
        fresh.mkdir()
        yield fresh
        follow_umask(fresh)
        for path in [*fresh.rglob("*"), fresh]:
            sync(path)
        if target.exists():
            target.rename(former)
        fresh.rename(target)
        sync(target.parent)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to a safetensors file, from any device; views of shared storage become tensors of their own."""
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)


def export_checkpoint(model: PreTrainedModel, tensors: dict[str, torch.Tensor], directory: Path) -> None:
    """Write `tensors`, all of one dtype, as a Hugging Face checkpoint of `model`'s architecture."""
    model.save_pretrained(directory, state_dict=tensors)
    config = copy.deepcopy(model.config)
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(directory)
