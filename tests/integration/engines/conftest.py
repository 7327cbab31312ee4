"""Tiny random Qwen3 checkpoints, and the learner's log-probs to hold engines against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncopd.models.mapped import write_tensors
from asyncopd.records import Version
from asyncopd.seams import Manifest

VOCABULARY = 96


def make_model(seed: int, *, tied: bool) -> Qwen3ForCausalLM:
    """Return a float32 model whose distributions are far from flat, and differ by seed."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        use_cache=True,
    )
    return Qwen3ForCausalLM(config).eval()


def save_checkpoint(model: Qwen3ForCausalLM, directory: Path) -> None:
    model.save_pretrained(directory)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1").save_pretrained(directory)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function from `seed` and `tied` to the directory of that model."""

    def directory(seed: int, *, tied: bool) -> str:
        path = tmp_path_factory.getbasetemp() / f"model-{seed}-{'tied' if tied else 'untied'}"
        if not path.exists():
            save_checkpoint(make_model(seed, tied=tied), path)
        return str(path)

    return directory


class ModelSource:
    """A `WeightSource` whose learner is a model of this process."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    async def send(self, version: Version, path: str) -> Manifest:
        return write_tensors(path, version, self.model.named_parameters())


@torch.no_grad()
def learner_logp(
    model: Qwen3ForCausalLM, prompt_ids: list[int], ids_R: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """Return the learner's float32 log-probs of `ids_R` after `prompt_ids`."""
    ids_T = torch.tensor([[*prompt_ids, *ids_R.tolist()]])
    logp_TV = torch.log_softmax(model(ids_T).logits[0].float() / temperature, dim=-1)
    rows_R = torch.arange(len(prompt_ids) - 1, ids_T.shape[1] - 1)
    return logp_TV[rows_R, ids_T[0, len(prompt_ids) :]].numpy()
