"""What the served checkpoint holds, and so what an update of it must hold.

vLLM takes a partial set of tensors without an error, and then serves garbage from half-filled fused modules.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors import safe_open
from vllm.config import ModelConfig

from asyncopd.records import Manifest, WeightFile
from asyncopd.tensors.adapter import is_adapter


class OtherModel(RuntimeError):
    """Weights are not of the model that is served; the message names the file, the tensor and what differs."""


class Layout:
    """Names and shapes of the checkpoint that vLLM was started from, and the dtype it serves in."""

    def __init__(self, model_config: ModelConfig) -> None:
        self._model = model_config.model
        self._revision = model_config.revision
        self._dtype = str(model_config.dtype).removeprefix("torch.")
        self._tied = bool(model_config.hf_text_config.tie_word_embeddings)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor; a tied head has none of its own, even where the checkpoint repeats it."""
        shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(self.directory().glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if self._tied:
            shapes.pop("lm_head.weight", None)
        return shapes

    def directory(self) -> Path:
        """Return where the checkpoint lies."""
        directory = Path(self._model)
        if directory.is_dir():
            return directory
        return Path(snapshot_download(self._model, revision=self._revision, local_files_only=True))

    def loadable(self, names: Collection[str]) -> list[str]:
        """Return those of `names` that the model has a place for, in their order."""
        return [name for name in names if name in self.shapes]

    def check(self, manifest: Manifest) -> None:
        """Raise `OtherModel` unless the files of `manifest` are of this layout, the first one complete.

        An adapter is let through: whoever merges it checks it.
        """
        if is_adapter(entry.name for entry in manifest.files[0].tensors):
            return
        for weights in manifest.files:
            self._check(weights)

    def _check(self, weights: WeightFile) -> None:
        found = {entry.name: entry for entry in weights.tensors}
        if self._tied:
            found.pop("lm_head.weight", None)
        names = found.keys() | self.shapes.keys() if weights.base is None else found.keys()
        for name in sorted(names):
            shape = found[name].shape if name in found else "none"
            expected = self.shapes.get(name, "none")
            if shape != expected:
                raise OtherModel(f"{weights.path}: {name} has shape {shape}, the checkpoint served has {expected}")
            if found[name].dtype != self._dtype:
                raise OtherModel(f"{weights.path}: {name} is {found[name].dtype}, the engine serves {self._dtype}")
