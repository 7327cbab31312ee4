"""Asynchronous on-policy distillation and RL for tool-using agents, on vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncopd.runtime.callbacks import Callback
    from asyncopd.runtime.train import train

__all__ = ["Callback", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `asyncopd.objectives` alone does not load a runtime."""
    if name == "train":
        from asyncopd.runtime.train import train

        return train
    if name == "Callback":
        from asyncopd.runtime.callbacks import Callback

        return Callback
    raise AttributeError(f"module 'asyncopd' has no attribute {name!r}")
