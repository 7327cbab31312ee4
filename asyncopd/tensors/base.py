"""The tensors of a Hugging Face checkpoint on disk, each mapped when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """What the safetensors files of `directory` hold, by name; do not write to it."""

    def __init__(self, directory: Path) -> None:
        self._files = {
            name: file
            for path in sorted(directory.glob("*.safetensors"))
            for file in [safe_open(path, framework="pt")]
            for name in file.keys()  # noqa: SIM118 - it is no mapping
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
