"""Tiny models of the Qwen3 architecture, untrained, with the calculator's tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncopd.models.permissions import follow_umask
from asyncopd_envs.calculator.tokenizer import MAX_CONTEXT, build


def create(directory: Path, *, width: int, layers: int, seed: int) -> None:
    """Write a randomly initialised model of `layers` layers and hidden size `width`, with its tokenizer.

    Tied embeddings, 4 heads of 32 (vLLM's CPU attention has no narrower), 2 key-value heads, float32.
    """
    tokenizer = build()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.08,  # at the usual 0.02, models this small do not begin to learn in 400 steps
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    follow_umask(directory)
