"""The stages between the channels: rollout, scoring, learning.

Invariants
- An attempt's payload is durable before the event that names it is emitted.
- The learner takes steps, sends weights and saves in the order commanded; weights of version v are sent
  before step v + 1 begins, and engines take them in while it runs.
- A stage ends only by cancellation or by an error that ends the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from asyncopd.records import (
    Generation,
    LossMask,
    Scores,
    SendOrder,
    StepReport,
    Task,
    Trajectory,
    Version,
    WeightFile,
    decode,
    encode,
)
from asyncopd.rollout.pool import RolloutError, RolloutPool
from asyncopd.rollout.summary import summarise
from asyncopd.runtime.channels import AsyncioChannel
from asyncopd.runtime.learner_process import LearnerProcess, MemberRef
from asyncopd.runtime.payloads import FilePayloadStore
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.run_loop import RunLoop
from asyncopd.scheduler import commands, events
from asyncopd.scoring.service import ScoringService
from asyncopd.seams import WeightSync
from asyncopd.telemetry.metrics import Metrics
from asyncopd.weights.protocol import NoEngineCame

_log = logging.getLogger(__name__)


class RolloutStage:
    """Lives the attempts the scheduler starts."""

    def __init__(
        self,
        channel: AsyncioChannel,
        pool: RolloutPool,
        tasks: Sequence[Task],
        payloads: FilePayloadStore,
        loop: RunLoop,
        metrics: Metrics,
        record: Callable[[int, Trajectory], None],
    ) -> None:
        self._channel = channel
        self._pool = pool
        self._tasks = tasks
        self._payloads = payloads
        self._loop = loop
        self._metrics = metrics
        self._record = record

    async def work(self) -> None:
        """Serve one attempt after another; run as many of these as episodes may be alive."""
        while True:
            command: commands.StartAttempt = await self._channel.lease()
            try:
                await self._live(command)
            finally:
                self._channel.ack(command)

    async def _live(self, command: commands.StartAttempt) -> None:
        async def on_turn(generation: Generation) -> None:
            versions = generation.version_R
            self._metrics.tokens["rollout"] += len(versions)
            if len(versions):
                self._loop.emit(
                    events.TurnGenerated,
                    attempt=command.attempt,
                    tokens=len(versions),
                    first=Version.unpack(int(versions[0])),
                    last=Version.unpack(int(versions[-1])),
                )

        try:
            trajectory = await self._pool.run(
                command.attempt,
                self._tasks[command.task],
                command.sample,
                command.min_version,
                on_turn,
                engine=command.engine,
            )
        except RolloutError as error:
            _log.warning("attempt %d is tried again: %s", command.attempt, error)
            self._loop.last_failure = str(error)
            self._loop.emit(events.RolloutFailed, attempt=command.attempt, reason=error.reason)
            return
        key = f"trajectory-{command.attempt}"
        await self._payloads.put(key, encode(trajectory))
        self._record(command.attempt, trajectory)
        self._loop.emit(events.RolloutFinished, meta=summarise(trajectory, command.group, key))


class ScoringStage:
    """Has finished trajectories scored."""

    def __init__(
        self,
        channel: AsyncioChannel,
        service: ScoringService,
        payloads: FilePayloadStore,
        loop: RunLoop,
        metrics: Metrics,
    ) -> None:
        self._channel = channel
        self._service = service
        self._payloads = payloads
        self._loop = loop
        self._metrics = metrics

    async def work(self) -> None:
        """Serve one trajectory after another; run enough of these to fill the teacher's batches."""
        while True:
            command: commands.ScoreAttempt = await self._channel.lease()
            try:
                await self._score(command)
            finally:
                self._channel.ack(command)

    async def _score(self, command: commands.ScoreAttempt) -> None:
        trajectory = decode(self._payloads.get(command.payload), Trajectory)
        scores: list[Scores | None] = await self._service.score(trajectory, command.step)
        self._metrics.tokens["scoring"] = self._service.stats.teacher_tokens
        unscored = sum(
            int((segment.loss_mask_T == LossMask.TRAIN).sum())
            for segment, answer in zip(trajectory.segments, scores, strict=True)
            if answer is None
        )
        key = f"scores-{command.attempt}"
        await self._payloads.put(key, encode(scores))
        self._loop.emit(events.Scored, attempt=command.attempt, payload=key, unscored=unscored)


class LearnerStage:
    """Takes the steps, publishes the weights and saves the checkpoints that the scheduler commands."""

    def __init__(
        self,
        channel: AsyncioChannel,
        learner: LearnerProcess,
        sync: WeightSync,
        drain: Callable[[str, str], None],
        payloads: FilePayloadStore,
        directory: RunDirectory,
        loop: RunLoop,
        metrics: Metrics,
        on_step: Callable[[commands.TrainStep, StepReport], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._channel = channel
        self._learner = learner
        self._sync = sync
        self._drain = drain
        self._payloads = payloads
        self._directory = directory
        self._loop = loop
        self._metrics = metrics
        self._on_step = on_step
        self._spawn = spawn
        self._publication: asyncio.Task[None] | None = None

    async def work(self) -> None:
        """Serve one command after another; run one of these."""
        while True:
            command = await self._channel.lease()
            match command:
                case commands.TrainStep():
                    await self._train(command)
                case commands.PublishWeights():
                    await self._publish(command.version)
                case commands.SaveCheckpoint():
                    with self._directory.new_checkpoint(command.step) as path:
                        await self._learner.save(path)
                    self._loop.emit(events.CheckpointSaved, step=command.step)
            self._channel.ack(command)

    async def _publish(self, version: Version) -> None:
        """Send the weights of `version`; return once sent, while the engines still take them in."""
        await self.published()
        source = _SentSignal(self._learner)
        self._publication = self._spawn(self._commit(version, source))
        await source.sent.wait()

    async def published(self) -> None:
        """Wait for the publication under way."""
        if self._publication is not None:
            await self._publication

    async def _commit(self, version: Version, source: _SentSignal) -> None:
        """Publish `version`; an engine that did not come to it serves no more, and others may replace it."""
        try:
            report = await self._sync.publish(version, source)
        except NoEngineCame as none:
            failed = none.failed
            source.sent.set()  # the learner holds what a broadcast brought to nobody, and goes on
        else:
            self._metrics.updated(report)
            failed = report.failed
        for engine, reason in failed.items():
            self._drain(engine, reason)

    async def _train(self, command: commands.TrainStep) -> None:
        members = [
            MemberRef(
                attempt=member.attempt,
                group=member.group,
                domain=member.domain,
                reward=member.reward,
                trajectory=self._payloads.ref(member.trajectory),
                scores=None if member.scores is None else self._payloads.ref(member.scores),
            )
            for member in command.members
        ]
        with self._metrics.busy["learner"].busy():
            report = await self._learner.step(command.step, members)
        self._metrics.tokens["learner"] += report.tokens
        self._metrics.trained(report.lag_histogram, report.agreement, report.mixed)
        self._loop.emit(events.StepTrained, step=report.step, attempts=tuple(report.attempts))
        self._on_step(command, report)


class _SentSignal:
    """The learner as a weight source that also says when its part is done."""

    def __init__(self, learner: LearnerProcess) -> None:
        self._learner = learner
        self.sent = asyncio.Event()

    async def send(self, order: SendOrder) -> WeightFile:
        sent = await self._learner.send(order)
        self.sent.set()
        return sent
