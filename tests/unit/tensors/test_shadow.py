"""What a learner sends and engines rebuild, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asyncopd.records import Manifest, SendOrder, Version, WeightFile
from asyncopd.tensors.sender import Sender
from asyncopd.tensors.shadow import Shadow


class Learner:
    """Tensors that move a little at each step."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tensors = {
            "embed": torch.randn(400, 65, generator=generator).to(dtype),
            "norm": torch.ones(65, dtype=dtype),
            "frozen": torch.zeros(3, 3, dtype=dtype),
        }
        self.sender = Sender()
        self.step = 0
        self._generator = generator

    def move(self, share: float = 0.02) -> None:
        self.step += 1
        for name in ("embed", "norm"):
            tensor = self.tensors[name]
            moved = torch.rand(tensor.shape, generator=self._generator) < share
            self.tensors[name] = torch.where(moved, tensor * 1.01, tensor)

    def send(self, path: Path | str, base: Version | None, form: str = "delta", dense: str = "mapped") -> WeightFile:
        order = SendOrder(
            version=Version(0, self.step), path=f"{path}/{self.step}", format=form, base=base, dense=dense
        )  # type: ignore[arg-type]
        return self.sender.send(order, self.tensors.items())

    def is_as(self, shadow: Shadow) -> bool:
        return list(shadow.tensors) == list(self.tensors) and all(
            torch.equal(shadow.tensors[name].view(torch.uint8), tensor.view(torch.uint8))
            for name, tensor in self.tensors.items()
        )


@pytest.mark.parametrize("dense", ["mapped", "safetensors"])
def test_a_shadow_follows_a_chain_and_names_what_changed(tmp_path: Path, dense: str) -> None:
    learner, shadow = Learner(), Shadow()
    files = [learner.send(tmp_path, None, dense=dense)]
    assert files[0].format == dense
    assert shadow.follow(Manifest(files=tuple(files))) == ("embed", "norm", "frozen")
    for _ in range(3):
        learner.move()
        files.append(learner.send(tmp_path, files[-1].version))
        assert files[-1].format == "delta"
        assert shadow.follow(Manifest(files=tuple(files))) == ("embed", "norm")
        assert shadow.version == files[-1].version and learner.is_as(shadow)
    late = Shadow()
    assert late.follow(Manifest(files=tuple(files))) == ("embed", "norm", "frozen")
    assert learner.is_as(late)
