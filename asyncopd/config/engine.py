"""The engine that generates with the student's weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class EngineSection(Section):
    """`engine`: what serves rollouts."""

    use: Literal["vllm", "torch"] = "vllm"
    """`vllm` in process, or the small deterministic `torch` reference."""

    max_context: int = Field(2048, ge=32)
    """Tokens of prompt and generation together, at most."""

    max_concurrent: int = Field(64, ge=1)
    """Sequences generated at once."""

    kv_cache_mib: int = Field(256, ge=16)
    """Memory for keys and values, MiB (CPU builds; GPU builds use `gpu_memory_fraction`)."""

    gpu_memory_fraction: float = Field(0.6, gt=0, le=1)
    """Share of GPU memory the engine may take."""

    start_timeout_s: float = Field(300, gt=0)
    """Seconds the engine may take to start."""

    update_timeout_s: float = Field(120, gt=0)
    """Seconds an in-flight weight update may take."""
