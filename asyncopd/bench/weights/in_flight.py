"""Updates under continuous generation: what is lost, what is doubled, and whether the engine ends where it should.

Shapes: R generated tokens.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncopd.bench.weights.moving import MovingLearner
from asyncopd.bench.weights.serving import Student
from asyncopd.records import GenerateRequest, Generation, Version
from asyncopd.seams import Engine

_KEYFRAME_EVERY = 16


async def bench_in_flight(
    student: Student, *, updates: int, concurrent: int, turn_tokens: int, lr: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Publish `updates` versions, most as deltas, while `concurrent` turns are always under way."""
    learner = MovingLearner(student.model(), student.config.student.dtype, lr)
    pauses: list[float] = []
    async with student.served("keep") as (engine, receiver):
        sync = student.sync(receiver, _KEYFRAME_EVERY)
        streams = Streams(student, engine, turn_tokens)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrent):
                    group.create_task(streams.run())
                for step in range(1, updates + 1):
                    await asyncio.to_thread(learner.step)
                    pauses.append((await sync.publish(Version(0, step), learner)).pause_seconds)
                    if step % 20 == 0:
                        say(f"{step} of {updates} updates, {streams.tokens} tokens")
                streams.stopping = True
        finally:
            sync.close()
        states = await receiver.states()
        turns = [student.turn(engine, turn_tokens) for _ in range(concurrent)]
        answers = list(zip(turns, await asyncio.gather(*map(engine.generate, turns)), strict=True))
    newest = Version(0, updates)
    expected = learner.checksum()
    differences = student.differences(newest, dict(learner.named_tensors()), answers)
    return {
        "updates": updates,
        "turns": len(streams.asked),
        "tokens": streams.tokens,
        **streams.verdict(),
        "checksum_equal": all((state.loaded, state.checksum) == (newest, expected) for state in states),
        "logprob_diff_mean_after": float(np.concatenate(differences).mean()),
        "pause_seconds_in_flight": statistics.median(pauses),
        "pause_seconds_in_flight_max": max(pauses),
    }


class Streams:
    """Turns that follow one another until `stopping`."""

    def __init__(self, student: Student, engine: Engine, turn_tokens: int) -> None:
        self.asked: list[GenerateRequest] = []
        self.stopping = False
        self._student = student
        self._engine = engine
        self._turn_tokens = turn_tokens
        self._answers: list[tuple[GenerateRequest, Generation, Version]] = []

    @property
    def tokens(self) -> int:
        return sum(len(generation.ids_R) for _, generation, _ in self._answers)

    async def run(self) -> None:
        """Be one stream."""
        while not self.stopping:
            request = self._student.turn(self._engine, self._turn_tokens)
            self.asked.append(request)
            generation = await self._engine.generate(request)
            self._answers.append((request, generation, self._engine.version))

    def verdict(self) -> dict[str, Any]:
        """Say how many tokens asked for are missing, how many were not asked for, and whether versions only rose."""
        answered = Counter(request.request_id for request, _, _ in self._answers)
        found = [len(generation.ids_R) for _, generation, _ in self._answers]
        lost = sum(max(0, self._turn_tokens - count) for count in found)
        lost += self._turn_tokens * sum(answered[request.request_id] == 0 for request in self.asked)
        duplicated = sum(max(0, count - self._turn_tokens) for count in found)
        duplicated += self._turn_tokens * sum(count - 1 for count in answered.values())
        return {
            "lost": lost,
            "duplicated": duplicated,
            "versions_monotone": all(
                _rises(generation.version_R, r.min_version, end) for r, generation, end in self._answers
            ),
            "versions_in_a_turn_max": max(len(np.unique(generation.version_R)) for _, generation, _ in self._answers),
        }


def _rises(version_R: np.ndarray, first: Version, last: Version) -> bool:
    """Say whether a turn's versions never fall, and lie within those served while it was under way."""
    within = first.pack() <= version_R[0] and version_R[-1] <= last.pack()
    return bool(within and (np.diff(version_R) >= 0).all())
