"""Tiny random Qwen3 checkpoints with a real tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


@pytest.fixture(scope="session")
def checkpoint(
    word_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Return a function from a seed to the directory of that model: tied for even seeds, untied for odd."""

    def directory(seed: int) -> Path:
        path = tmp_path_factory.getbasetemp() / f"teacher-{seed}"
        if not path.exists():
            torch.manual_seed(seed)
            config = Qwen3Config(
                vocab_size=len(word_tokenizer) + 3,
                hidden_size=32,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                max_position_embeddings=256,
                tie_word_embeddings=seed % 2 == 0,
                initializer_range=0.2,
            )
            Qwen3ForCausalLM(config).save_pretrained(path)
            word_tokenizer.save_pretrained(path)
        return path

    return directory
