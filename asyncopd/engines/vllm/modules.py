"""Which tensors of a checkpoint vLLM keeps in one module.

A fused module, or a packed one, can only be filled anew from all its tensors: from some, it serves garbage without
an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from vllm.model_executor.models.interfaces import supports_lora


class ModuleMap:
    """The modules of `model` that hold the tensors `names` of its checkpoint."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        # Models that adapters can be loaded into say how they fuse; for others the rule below takes more than needed.
        fused = model.packed_modules_mapping if supports_lora(model) else {}
        self._whole = {part: whole for whole, parts in fused.items() for part in parts}
        self._paths = {path for path, _ in model.named_modules()}
        self._path_of = {name: self._path(name) for name in names}

    def _path(self, name: str) -> str:
        """Return the path of the deepest module there is on the way to `name`; a part of a fused one is in it."""
        parent, _, leaf = name.rpartition(".")[0].rpartition(".")
        path = ".".join(filter(None, [parent, self._whole.get(leaf, leaf)]))
        while path not in self._paths:
            path = path.rpartition(".")[0]
        return path

    def paths(self, names: Iterable[str]) -> list[str]:
        """Return the paths of the modules that hold `names`."""
        return list(dict.fromkeys(self._path_of[name] for name in names))

    def complete(self, names: Collection[str]) -> list[str]:
        """Return `names` and all that share a module with one of them, or lie below it."""
        paths = self.paths(names)
        below = tuple(f"{path}." if path else "" for path in paths)
        return [name for name, path in self._path_of.items() if path in paths or path.startswith(below)]
