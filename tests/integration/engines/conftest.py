"""Tiny random Qwen3 checkpoints on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.tiny_models import make_model, save_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function from `seed` and `tied` to the directory of that model."""

    def directory(seed: int, *, tied: bool) -> Path:
        path = tmp_path_factory.getbasetemp() / f"model-{seed}-{'tied' if tied else 'untied'}"
        if not path.exists():
            save_checkpoint(make_model(seed, tied=tied), path)
        return path

    return directory
