"""How the student is updated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class OptimizerSection(Section):
    """`learner.optimizer`: AdamW, or Muon on the matrices and AdamW on the rest."""

    use: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    """AdamW's learning rate."""

    matrix_lr: float = Field(0.02, gt=0)
    """Muon's learning rate, for matrices other than the embedding and the head."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear growth from 0."""

    schedule: Literal["constant", "cosine"] = "constant"
    final_lr_fraction: float = Field(0.05, ge=0, le=1)
    """Where the cosine ends."""

    clip_norm: float = Field(1.0, gt=0)
    """Largest norm of the gradient."""


class LearnerSection(Section):
    """`learner`: memory and optimizer."""

    optimizer: OptimizerSection = OptimizerSection()

    micro_batch_tokens: int = Field(8192, ge=1)
    """Packed tokens of one forward and backward pass; a step has as many as it needs."""

    head_chunk: int = Field(1024, ge=1)
    """Positions whose logits exist at once."""

    timeout_s: float = Field(600, gt=0)
    """Seconds one optimizer step may take."""
