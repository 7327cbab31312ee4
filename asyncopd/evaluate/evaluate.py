"""Success of an agent on tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from asyncopd.evaluate.interval import wilson
from asyncopd.records import Outcome, Task, Trajectory, Version
from asyncopd.rollout.pool import RolloutError, RolloutPool

INITIAL = Version(0, 0)
SAMPLE = 0


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Share of successes among `tasks` tasks, with its 95 % interval.

    `outcomes` counts by name. Those that came to nothing, `infrastructure_error`, are no tasks of the share.
    `tokens` were generated in `seconds` by the episodes that were recorded.
    """

    success: float
    low: float
    high: float
    tasks: int
    tokens: int
    seconds: float
    outcomes: dict[str, int]


async def evaluate(
    pool: RolloutPool, tasks: Sequence[Task], *, max_retries: int, min_version: Version = INITIAL
) -> Evaluation:
    """Live each task once and count successes; the pool's section says how.

    An episode that comes to nothing through no fault of the agent is tried `max_retries` more times, then
    left out. Raises the last `RolloutError` if that leaves nothing, and `EngineDied`.
    """
    began = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(_live(pool, task, index * (max_retries + 1), max_retries, min_version))
                for index, task in enumerate(tasks)
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    ended = [run.result() for run in runs]
    lived = [end for end in ended if isinstance(end, Trajectory)]
    lost = [end for end in ended if isinstance(end, RolloutError)]
    if not lived:
        raise lost[-1]
    outcomes = Counter(trajectory.outcome.value for trajectory in lived)
    if lost:
        outcomes[Outcome.INFRASTRUCTURE_ERROR.value] = len(lost)
    successes = outcomes[Outcome.SUCCESS.value]
    low, high = wilson(successes, len(lived))
    return Evaluation(
        success=successes / len(lived),
        low=low,
        high=high,
        tasks=len(lived),
        tokens=sum(len(segment.generated_rows) for trajectory in lived for segment in trajectory.segments),
        seconds=time.monotonic() - began,
        outcomes=dict(outcomes),
    )


async def _live(
    pool: RolloutPool, task: Task, first: int, max_retries: int, min_version: Version
) -> Trajectory | RolloutError:
    """Return the record of the first try that has one, or why the last had none; tries are numbered from `first`."""
    for number in range(first, first + max_retries + 1):
        attempt = -1 - number  # negative, as those of training are not
        try:
            return await pool.run(attempt, task, SAMPLE, min_version)
        except RolloutError as error:
            last = error
    return last
