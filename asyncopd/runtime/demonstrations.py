"""An expert's episodes, recorded once and dealt into batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from asyncopd.config.root import SftConfig
from asyncopd.errors import UserError
from asyncopd.records import Batch, Outcome, Sample, Trajectory
from asyncopd.rollout.expert import demonstrate
from asyncopd.rollout.seeds import episode_seed
from asyncopd.runtime.world import World
from asyncopd.seams import ExpertEnvironment
from asyncopd.text.chat import Chat


class Demonstrations:
    """Samples in an order of their own for each epoch; a batch depends on seed and step only.

    `outcomes` counts the episodes by how they ended.
    """

    def __init__(self, trajectories: Sequence[Trajectory], seed: int) -> None:
        self.outcomes = Counter(trajectory.outcome for trajectory in trajectories)
        self._samples = [_samples(trajectory) for trajectory in trajectories]
        self._seed = seed

    def batch(self, step: int, size: int) -> Batch:
        """Return the `size` episodes of optimizer step `step`."""
        count = len(self._samples)
        positions = range(step * size, (step + 1) * size)
        orders = {
            epoch: np.random.default_rng([self._seed, epoch]).permutation(count)
            for epoch in {position // count for position in positions}
        }
        chosen = [self._samples[orders[position // count][position % count]] for position in positions]
        return Batch(step=step, samples=[sample for episode in chosen for sample in episode])


async def record(config: SftConfig, world: World, chat: Chat, warn: Callable[[str], None]) -> Demonstrations:
    """Let the expert of the environment live its episodes.

    Raises `UserError` where the environment has no expert, or no episode fits.
    """
    environment = world.make()
    if not isinstance(environment, ExpertEnvironment):
        raise UserError(
            "environment.use", f"{config.environment.use!r} has no expert", "give its class a method expert"
        )
    trajectories = []
    try:
        for index, task in enumerate(world.train[: config.demonstrations.episodes]):
            trajectories.append(
                await demonstrate(
                    environment,
                    chat,
                    task,
                    attempt=index,
                    seed=episode_seed(config.run.seed, task.id, 0),
                    section=config.rollout,
                    max_context=config.engine.max_context,
                    train_on_errors=config.demonstrations.train_on_errors,
                )
            )
            await asyncio.sleep(0)
    finally:
        await environment.close()
    demonstrations = Demonstrations(trajectories, config.run.seed)
    cut = demonstrations.outcomes[Outcome.TRUNCATED]
    if cut == len(trajectories):
        raise UserError(
            f"engine.max_context {config.engine.max_context}",
            "no demonstration ends within it, or within rollout.max_turns",
            "raise them",
        )
    if cut:
        warn(f"{cut} of {len(trajectories)} demonstrations were cut by engine.max_context or rollout.max_turns")
    return demonstrations


def _samples(trajectory: Trajectory) -> list[Sample]:
    return [
        Sample(
            attempt=trajectory.attempt,
            group=trajectory.attempt,
            domain=trajectory.task.domain,
            segment=segment,
            reward=trajectory.reward,
        )
        for segment in trajectory.segments
    ]
