"""Stores with their servers, a tiny teacher, and trajectories for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncopd.config.scoring import ScoringSection
from asyncopd.records import LossMask, Outcome, Segment, Task, Trajectory
from asyncopd.scoring.cache import open_store
from asyncopd.seams import ScoreStore

VOCABULARY = 96


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 checkpoint without a tokenizer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("teacher")
    Qwen3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def lived() -> Callable[[int], Trajectory]:
    """Return a trajectory of two random segments for a number."""

    def make(number: int) -> Trajectory:
        random = np.random.default_rng(number)
        segments = []
        for length in random.integers(5, 60, 2):
            mask_T = (np.arange(length) >= 3).astype(np.uint8) * LossMask.TRAIN
            segments.append(
                Segment(
                    ids_T=random.integers(0, VOCABULARY, length).astype(np.int32),
                    loss_mask_T=mask_T.astype(np.uint8),
                    logp_T=np.zeros(length, np.float32),
                    version_T=np.zeros(length, np.int64),
                    mixed_kv_T=np.zeros(length, np.uint8),
                    turn_T=np.where(mask_T == 1, 0, -1).astype(np.int16),
                )
            )
        return Trajectory(
            task=Task(id=str(number), domain="d", data={}),
            attempt=number,
            prompt=[],
            segments=segments,
            turns=[],
            outcome=Outcome.SUCCESS,
            reward=0.0,
        )

    return make


@pytest.fixture
def embedded() -> Callable[..., object]:
    """Return a context manager that opens an embedded store below a directory."""

    @asynccontextmanager
    async def opened(directory: Path, mebibytes: int = 8) -> AsyncIterator[ScoreStore]:
        async with open_store(ScoringSection(cache="embedded", cache_mib=mebibytes), directory) as store:
            assert store is not None
            yield store

    return opened


@pytest.fixture
def gone() -> Callable[..., object]:
    """Return a coroutine function that waits until processes are gone, zombies counted as gone."""

    async def wait(pids: list[int], within_s: float = 10.0) -> None:
        async with asyncio.timeout(within_s):
            # Processes that are not our children report to nobody.
            while any(map(_alive, pids)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    return wait


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
