"""The same requests for every engine: prompts of a configuration's own tasks, and turns of equal length.

Shapes: R generated tokens, K support entries.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncopd.records import (
    NO_DRAWS,
    DrawSpec,
    GenerateRequest,
    Generation,
    Outcome,
    Sampling,
    Scores,
    Support,
    SupportKind,
    Task,
    Trajectory,
    Version,
)
from asyncopd.rollout.recorder import Recorder

_DEADLINE_S = 900.0

_numbers = itertools.count()


@dataclass(frozen=True)
class Workload:
    """Turns of `turn_tokens` tokens each after `prompts`, sampled at `temperature`, `concurrent` of them at once."""

    prompts: Sequence[list[int]]
    turn_tokens: int
    temperature: float
    concurrent: int

    def requests(self, draws: DrawSpec = NO_DRAWS, count: int | None = None) -> list[GenerateRequest]:
        """Return a request a prompt, by default of all; equal but for their ids whenever they are asked for."""
        return [self._request(prompt, seed, draws) for seed, prompt in enumerate(self.prompts[:count])]

    def _request(self, prompt: list[int], seed: int, draws: DrawSpec) -> GenerateRequest:
        number = f"bench-{next(_numbers)}"
        return GenerateRequest(
            request_id=number,
            trajectory_id=number,
            prompt_ids=prompt,
            sampling=Sampling(temperature=self.temperature, max_tokens=self.turn_tokens, seed=seed, stop_ids=()),
            min_version=Version(0, 0),
            deadline=asyncio.get_running_loop().time() + _DEADLINE_S,
            draws=draws,
        )


async def run_all(
    requests: Sequence[GenerateRequest], serve: Callable[[GenerateRequest], Awaitable[int]], concurrent: int
) -> float:
    """Serve all requests, `concurrent` at once; `serve` returns the tokens it got. Returns tokens per second."""
    waiting = iter(requests)
    tokens = 0

    async def work() -> None:
        nonlocal tokens
        for request in waiting:
            count = await serve(request)
            tokens += count  # a sum with an `await` in it would lose what others add meanwhile

    began = time.perf_counter()
    await many(work, concurrent)
    return tokens / (time.perf_counter() - began)


async def many(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> None:
    """Do `work` `count` times at once. Raises the first error, when all are done or given up."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(work())
                await asyncio.sleep(0)  # a burst of starts would hold up the loop, which a training avoids too
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def trajectory_of(number: int, request: GenerateRequest, generation: Generation) -> Trajectory:
    """Return the record of an attempt that consisted of one turn."""
    recorder = Recorder(request.prompt_ids)
    recorder.generated(generation, 0)
    return Trajectory(
        task=Task(id=str(number), domain="bench", data={}),
        attempt=number,
        prompt=[],
        segments=recorder.segments(),
        turns=[],
        outcome=Outcome.SUCCESS,
        reward=0.0,
    )


def random_scores(trajectory: Trajectory, width: int, vocabulary: int) -> list[Scores]:
    """Return scores of a teacher that knows nothing, for the work of learning from them."""
    random = np.random.default_rng(trajectory.attempt)
    scores = []
    for segment in trajectory.segments:
        rows = len(segment.trained_rows)
        ids_RK = np.argpartition(random.random((rows, vocabulary)), width - 1, axis=1)[:, :width].astype(np.int32)
        logp_RK = np.log(random.dirichlet(np.ones(width + 1), rows))[:, :width].astype(np.float32)
        order_RK = np.argsort(-logp_RK, axis=1)
        scores.append(
            Scores(
                support=Support(kind=SupportKind.TEACHER_TOPK, width=width),
                ids_RK=ids_RK,
                logp_RK=np.take_along_axis(logp_RK, order_RK, axis=1),
            )
        )
    return scores
