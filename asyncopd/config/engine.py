"""The engine that generates with the student's weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from asyncopd.config.section import Section


class EngineSection(Section):
    """`engine`: what serves rollouts."""

    use: Literal["vllm", "vllm_server", "torch"] = "vllm"
    """`vllm` in process, `vllm_server` over HTTP, or the small deterministic `torch` reference."""

    replicas: int = Field(1, ge=1)
    """Engines of the student to start; each gets `runtime.threads.engine` threads."""

    urls: list[Annotated[str, Field(pattern=r"^https?://[^/\s]+")]] = []
    """Servers that run already, for `vllm_server`: none is started then. Each needs vLLM's development mode."""

    api_key_env: str | None = None
    """The environment variable that holds the key of the servers at `urls`."""

    kv_policy: Literal["keep", "recompute"] = "keep"
    """What a generation under way does with its keys and values when the weights change: `keep` goes on over the
    old ones, `recompute` computes them again under the new weights."""

    options: dict[str, Any] = {}
    """More of vLLM's engine arguments (`quantization`, `tensor_parallel_size`, …), as vLLM names them."""

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

    probe_interval_s: float = Field(5, gt=0)
    """Seconds between two probes of a server."""

    probe_timeout_s: float = Field(15, gt=0)
    """Seconds without an answer after which a server is given up."""

    max_replacements: int = Field(8, ge=0)
    """Engines started in place of lost ones while training goes on; after that it goes on with those left, and
    once none is, from the last checkpoint with all of them and as many replacements."""

    logprob_alarm: float | None = Field(None, gt=0)
    """Mean |log π − log μ| at equal weights, nats, above which the run warns that engine and learner disagree; by
    default 0.001 in float32, 0.15 in lower precision."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.urls and self.use != "vllm_server":
            raise ValueError(f"urls are of vLLM servers, and use is {self.use!r}: set use to vllm_server")
        if self.urls and self.replicas > 1:
            raise ValueError(f"replicas {self.replicas} are not started beside urls: leave one of the two out")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError(f"urls {self.urls} name a server twice: list each once")
        if self.api_key_env is not None and not self.urls:
            raise ValueError("api_key_env is for the servers at urls, and there are none: list them or leave it out")
        return self
