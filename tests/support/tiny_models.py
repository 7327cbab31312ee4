"""Tiny random models, requests to engines, and the learner's log-probs to hold answers against."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from asyncopd.records import DrawSpec, GenerateRequest, Sampling, SendOrder, Version, WeightFile
from asyncopd.tensors.sender import Sender

VOCABULARY = 96


def make_model(seed: int, *, tied: bool, biases: bool = False) -> PreTrainedModel:
    """Return a float32 model whose distributions are far from flat, and differ by seed; Qwen2 where it has biases."""
    torch.manual_seed(seed)
    config_class, model_class = (Qwen2Config, Qwen2ForCausalLM) if biases else (Qwen3Config, Qwen3ForCausalLM)
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2 if biases else 4,
        num_key_value_heads=1 if biases else 2,
        **({} if biases else {"head_dim": 32}),  # vLLM's CPU attention takes no less
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        use_cache=True,
    )
    model = model_class(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def save_checkpoint(model: PreTrainedModel, directory: Path) -> None:
    model.save_pretrained(directory)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1").save_pretrained(directory)


_numbers = itertools.count()


def turn(
    prompt_ids: list[int],
    *,
    max_tokens: int = 16,
    temperature: float = 1.0,
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    min_version: Version = Version(0, 0),  # noqa: B008
    within_s: float = 60.0,
    resume_ids: list[int] | None = None,
    head: int = 0,
) -> GenerateRequest:
    """Return a request with an id of its own and a deadline `within_s` seconds from now."""
    number = next(_numbers)
    return GenerateRequest(
        request_id=str(number),
        trajectory_id=str(number),
        prompt_ids=prompt_ids,
        resume_ids=resume_ids or [],
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed, stop_ids=stop_ids),
        min_version=min_version,
        deadline=asyncio.get_running_loop().time() + within_s,
        draws=DrawSpec(head=head),
    )


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return `length` random ids."""
    return np.random.default_rng(seed).integers(2, VOCABULARY, length).tolist()


class ModelSource:
    """A `WeightSource` whose learner is a model of this process."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._sender = Sender()

    async def send(self, order: SendOrder) -> WeightFile:
        return self._sender.send(order, self.model.named_parameters())


@torch.no_grad()
def learner_logp(
    model: PreTrainedModel, prompt_ids: list[int], ids_R: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """Return the learner's float32 log-probs of `ids_R` after `prompt_ids`."""
    return mixed_logp([(model, 0)], prompt_ids, ids_R, temperature)


@torch.no_grad()
def mixed_logp(
    spans: list[tuple[PreTrainedModel, int]], prompt_ids: list[int], ids_R: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """Return log-probs of `ids_R` where each (model, start) samples from token `start` on, over older keys and values.

    The first token a model samples follows from the last token of its predecessor, which it is the first to read.
    """
    ids_T = torch.tensor([*prompt_ids, *ids_R.tolist()])
    starts = [0 if start == 0 else len(prompt_ids) + start - 1 for _, start in spans]
    cache = DynamicCache()
    logits = [
        model(ids_T[None, begin:end], past_key_values=cache).logits[0]
        for (model, _), begin, end in zip(spans, starts, [*starts[1:], len(ids_T) - 1], strict=True)
    ]
    logp_TV = torch.log_softmax(torch.cat(logits) / temperature, dim=-1)[len(prompt_ids) - 1 :]
    return logp_TV[torch.arange(len(ids_R)), ids_T[len(prompt_ids) :]].numpy()
