"""How new weights reach the engines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from asyncopd.config.section import Section


class WeightsSection(Section):
    """`weights`: how a version of the student travels from the learner to every engine."""

    use: Literal["auto", "shm", "disk", "gloo", "nccl"] = "auto"
    """`shm` maps files on this machine; `disk` passes safetensors through any directory or URL that both sides
    reach; `gloo` and `nccl` broadcast through a process group. `auto` is `shm` for engines started here, `disk` for
    servers given by URL or a `dir` that is a URL."""

    dir: str | None = None
    """Where the files lie: a directory, or for `disk` any fsspec URL; by default /dev/shm where it has room, else
    the run directory."""

    encoding: Literal["dense", "delta"] = "dense"
    """`delta` sends what changed in serving dtype, and all tensors where that is smaller, of `shm` and `disk`."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address of this machine that the members of a `gloo` or `nccl` group meet at; servers on other machines need
    one that they reach."""

    keyframe_every: int = Field(16, ge=1)
    """Updates after which all tensors are sent again, so that whoever comes late has few deltas to read."""

    @property
    def url(self) -> str | None:
        """`dir` where it is a URL, else None."""
        return self.dir if self.dir is not None and "://" in self.dir else None

    @model_validator(mode="after")
    def _fits_together(self) -> WeightsSection:
        if self.use == "shm" and self.url is not None:
            raise ValueError(f"use: shm cannot map files at {self.url}; name a directory, or use: disk")
        if self.use in ("gloo", "nccl") and (self.encoding == "delta" or self.dir is not None):
            raise ValueError(f"use: {self.use} writes no files: leave encoding and dir out, or use shm or disk")
        if self.use == "nccl" and self.lora == "adapter":
            raise ValueError("use: nccl goes straight into the model, which has no place for an adapter: merge it")
        return self

    lora: Literal["merged", "adapter"] = "merged"
    """What travels of a student with `learner.lora`: all its weights with the adapter `merged` in, or the `adapter`
    alone, which each engine merges into the checkpoint it was started from."""
