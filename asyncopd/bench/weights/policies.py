"""What each `engine.kv_policy` costs, and how far log μ is from a full recompute at the token's own version."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import numpy as np
import torch

from asyncopd.bench.weights.moving import MovingLearner
from asyncopd.bench.weights.serving import Answer, Student
from asyncopd.engines.vllm.receiver import KvPolicy
from asyncopd.records import Version
from asyncopd.seams import Engine
from asyncopd.weights.sync import FileWeightSync

_POLICIES: tuple[KvPolicy, ...] = ("keep", "recompute")
_UPDATES = 2


class Work:
    """Serves `concurrent` turns at a time; remembers the last ones, and the weights they were sampled with."""

    def __init__(
        self,
        student: Student,
        engine: Engine,
        sync: FileWeightSync,
        learner: MovingLearner,
        concurrent: int,
        turn_tokens: int,
    ) -> None:
        self.pauses: list[float] = []
        self._student = student
        self._engine = engine
        self._sync = sync
        self._learner = learner
        self._concurrent = concurrent
        self._turn_tokens = turn_tokens
        self._answers: list[Answer] = []
        self._weights: dict[Version, dict[str, torch.Tensor]] = {}

    async def seconds(self, updates: int) -> float:
        """Serve the turns while `updates` versions are published; return how long the turns took."""
        turns = [self._student.turn(self._engine, self._turn_tokens) for _ in range(self._concurrent)]
        self._weights = {self._engine.version: self._learner.served()}
        began = time.perf_counter()
        serving = asyncio.gather(*map(self._engine.generate, turns))
        ends: list[float] = []
        serving.add_done_callback(lambda _: ends.append(time.perf_counter()))
        for _ in range(updates):
            await asyncio.to_thread(self._learner.step)
            version = Version(0, self._engine.version.step + 1)
            self._weights[version] = await asyncio.to_thread(self._learner.served)
            self.pauses.append((await self._sync.publish(version, self._learner)).pause_seconds)
        self._answers = list(zip(turns, await serving, strict=True))
        return ends[0] - began

    def mismatch(self) -> dict[str, float]:
        """Compare the last answers with a full recompute, in nats: tokens after an update and those before any."""
        found: dict[str, list[np.ndarray]] = {"before": [], "after": []}
        for version, weights in self._weights.items():
            differences = self._student.differences(version, weights, self._answers)
            found["before" if version == min(self._weights) else "after"] += differences
        figures = {}
        for when, parts in found.items():
            figures[f"logprob_diff_mean_{when}"] = float(np.concatenate(parts).mean())
            figures[f"logprob_diff_p99_{when}"] = float(np.quantile(np.concatenate(parts), 0.99))
        return figures


async def bench_policies(
    student: Student, *, repeats: int, concurrent: int, turn_tokens: int, lr: float
) -> dict[str, Any]:
    """Serve turns with and without updates under way, `repeats` times in turns after one more, under each policy."""
    figures: dict[str, Any] = {}
    for policy in _POLICIES:
        learner = MovingLearner(student.model(), student.config.student.dtype, lr)
        async with student.served(policy) as (engine, receiver):
            sync = student.sync(receiver, keyframe_every=1)
            work = Work(student, engine, sync, learner, concurrent, turn_tokens)
            try:
                figures[policy] = await _bench(work, repeats)
            finally:
                sync.close()
    return figures


async def _bench(work: Work, repeats: int) -> dict[str, float]:
    costs = []
    for _ in range(repeats + 1):
        undisturbed = await work.seconds(updates=0)
        costs.append((await work.seconds(_UPDATES) - undisturbed) / _UPDATES)
    return {
        "cost_seconds": statistics.median(costs[1:]),
        "pause_seconds": statistics.median(work.pauses),
        **await asyncio.to_thread(work.mismatch),
    }
