"""How the student is updated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncopd.config.section import Section


class OptimizerSection(Section):
    """`learner.optimizer`: AdamW, or Muon on the matrices and AdamW on the rest."""

    use: Literal["adamw", "muon"] = "adamw"
    """`muon` orthogonalises the updates of matrices (torch.optim.Muon)."""

    lr: float = Field(1e-3, gt=0)
    """AdamW's learning rate."""

    matrix_lr: float = Field(0.02, gt=0)
    """Muon's learning rate, for matrices other than the embedding and the head."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.98)
    """AdamW's decay rates of the first and second moment."""

    eps: float = Field(1e-8, gt=0)
    """AdamW's term in the denominator."""

    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay, of matrices only."""

    warmup_steps: int = Field(0, ge=0)
    """Steps of linear growth from 0."""

    schedule: Literal["constant", "cosine"] = "constant"
    """What follows the warm-up."""

    final_lr_fraction: float = Field(0.05, ge=0, le=1)
    """Where the cosine ends."""

    clip_norm: float = Field(1.0, gt=0)
    """Largest norm of the gradient."""


class LoraSection(Section):
    """`learner.lora`: train a low-rank adapter and leave the student's own weights as they are."""

    rank: int = Field(16, ge=1)
    """Rank of the change of each weight."""

    alpha: int = Field(32, ge=1)
    """The change counts `alpha / rank` times."""

    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Layers to adapt, by the ends of their names (`q_proj`, `layers.3.mlp.up_proj`); `all-linear` are all but the
    head."""


class LearnerSection(Section):
    """`learner`: memory, what is trained, and optimizer."""

    lora: LoraSection | None = None
    optimizer: OptimizerSection = OptimizerSection()

    micro_batch_tokens: int = Field(8192, ge=1)
    """Packed tokens of one forward and backward pass; a step has as many as it needs."""

    head_chunk: int = Field(1024, ge=1)
    """Positions whose logits exist at once."""

    timeout_s: float = Field(600, gt=0)
    """Seconds one optimizer step may take."""
