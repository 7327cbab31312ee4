"""A tiny student on disk, learners on it, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncopd.config.learner import LearnerSection
from asyncopd.config.model import ModelSection
from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.scheduler import FreshnessSection
from asyncopd.learner.learner import Learner
from asyncopd.records import Batch, LossMask, Sample, Scores, Segment, Support, SupportKind, Version

VOCABULARY = 48
WIDTH = 8


@pytest.fixture(scope="session")
def student(tmp_path_factory) -> Path:
    """The directory of a random Qwen3 with tied embeddings, and a tokenizer."""
    directory = tmp_path_factory.mktemp("student")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        initializer_range=0.3,
        tie_word_embeddings=True,
        max_position_embeddings=256,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")))
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def make_learner(student: Path) -> Callable[..., Learner]:
    """Build a learner on the student."""

    def build(
        *,
        optimizer: dict | None = None,
        micro_batch_tokens: int = 8192,
        use: str = "reverse_kl_topk",
        dtype: str = "float32",
        freshness: dict | None = None,
        temperature: float = 1.0,
        distill_temperature: float = 1.0,
        width: int = WIDTH,
        timeline: int = 0,
        lora: dict | None = None,
        publish: str = "merged",
    ) -> Learner:
        return Learner(
            student,
            model=ModelSection(model=str(student), dtype=dtype),
            section=LearnerSection(
                lora=lora, optimizer=optimizer or {}, micro_batch_tokens=micro_batch_tokens, head_chunk=16
            ),
            objective=ObjectiveSection(use=use, width=width, distill_temperature=distill_temperature),
            freshness=FreshnessSection(**(freshness or {})),
            max_staleness=2,
            temperature=temperature,
            steps=10,
            seed=0,
            timeline=timeline,
            publish=publish,
        )

    return build


@pytest.fixture
def reference(student: Path) -> PreTrainedModel:
    """The student as transformers loads it."""
    return Qwen3ForCausalLM.from_pretrained(student).eval()


@pytest.fixture
def make_batch(reference: PreTrainedModel) -> Callable[..., Batch]:
    """Build a batch of uneven segments whose log μ are the student's own, scored by a random teacher."""

    def build(step: int = 0, members: int = 6, seed: int = 0, lag: int = 0, width: int = WIDTH) -> Batch:
        random = np.random.default_rng(seed)
        version = Version(0, step - lag).pack()
        samples = []
        for attempt in range(members):
            length = int(random.integers(12, 40))
            ids_T = random.integers(0, VOCABULARY, length).astype(np.int32)
            mask_T = np.where(np.arange(length) < 4, LossMask.CONTEXT, random.integers(0, 2, length)).astype(np.uint8)
            mask_T[4] = LossMask.TRAIN
            segment = Segment(
                ids_T=ids_T,
                loss_mask_T=mask_T,
                logp_T=np.where(mask_T == LossMask.TRAIN, _logp(reference, ids_T), 0).astype(np.float32),
                version_T=np.where(mask_T == LossMask.TRAIN, version, -1),
                mixed_kv_T=np.zeros(length, dtype=np.uint8),
                turn_T=np.zeros(length, dtype=np.int16),
            )
            scores = _scores(random, len(segment.trained_rows), width)
            samples.append(Sample(attempt=attempt, group=attempt, domain="d", segment=segment, scores=scores))
        return Batch(step=step, samples=samples)

    return build


def _logp(model: PreTrainedModel, ids_T: np.ndarray) -> np.ndarray:
    """Return the model's log-probability of each token, 0 for the first."""
    ids = torch.from_numpy(ids_T.astype(np.int64))
    with torch.no_grad():
        logp_TV = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    return np.concatenate([[0.0], logp_TV[:-1].gather(1, ids[1:, None])[:, 0].numpy()])


def _scores(random: np.random.Generator, rows: int, width: int) -> Scores:
    logp_RV = np.log(random.dirichlet(np.ones(VOCABULARY), rows))
    ids_RK = np.argsort(-logp_RV, axis=1)[:, :width]
    return Scores(
        support=Support(kind=SupportKind.TEACHER_TOPK, width=width),
        ids_RK=ids_RK.astype(np.int32),
        logp_RK=np.take_along_axis(logp_RV, ids_RK, axis=1).astype(np.float32),
    )
