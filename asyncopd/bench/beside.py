"""A learner that steps over and over while something else is measured beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from asyncopd.bench.workload import random_scores
from asyncopd.config.root import TrainConfig
from asyncopd.records import StepReport, Trajectory, encode
from asyncopd.runtime.learner_process import LearnerProcess, MemberRef
from asyncopd.runtime.payloads import FilePayloadStore


class Beside:
    """Takes optimizer steps on the same members; `reports` are of the steps so far."""

    def __init__(self, learner: LearnerProcess, members: list[MemberRef]) -> None:
        self.reports: list[StepReport] = []
        self._learner = learner
        self._members = members

    async def step(self) -> StepReport:
        """Take one step."""
        report = await self._learner.step(len(self.reports), self._members)
        self.reports.append(report)
        return report

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Step for as long as the block lasts, and to the end of the last step. Raises what a step raises."""
        stop = asyncio.Event()

        async def steps() -> None:
            while not stop.is_set():
                await self.step()

        task = asyncio.create_task(steps())
        try:
            yield
        finally:
            stop.set()
            await task


@asynccontextmanager
async def open_beside(
    config: TrainConfig, student: Path, trajectories: Sequence[Trajectory], vocabulary: int, scratch: Path
) -> AsyncIterator[Beside]:
    """Start a learner of `config` on version 0 of `student`; it learns from `trajectories` and a random teacher."""
    payloads = FilePayloadStore(scratch / f"beside-{config.student.dtype}.bin")
    try:
        members = [await _member(payloads, trajectory, config, vocabulary) for trajectory in trajectories]
        learner = await LearnerProcess.start(config, student, checkpoint=None)
        try:
            yield Beside(learner, members)
        finally:
            await learner.close()
    finally:
        await payloads.close()


async def _member(
    payloads: FilePayloadStore, trajectory: Trajectory, config: TrainConfig, vocabulary: int
) -> MemberRef:
    trajectory_key, scores_key = f"trajectory-{trajectory.attempt}", f"scores-{trajectory.attempt}"
    await payloads.put(trajectory_key, encode(trajectory))
    await payloads.put(scores_key, encode(random_scores(trajectory, config.objective.width, vocabulary)))
    return MemberRef(
        attempt=trajectory.attempt,
        group=trajectory.attempt,
        domain=trajectory.task.domain,
        reward=trajectory.reward,
        trajectory=payloads.ref(trajectory_key),
        scores=payloads.ref(scores_key),
    )
