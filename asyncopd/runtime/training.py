"""The training itself: stages and run loop, from the first event to the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from asyncopd.records import StepReport, Version
from asyncopd.runtime.channels import AsyncioChannel
from asyncopd.runtime.prepare import Prepared
from asyncopd.runtime.record import Record
from asyncopd.runtime.reporting import Reporter
from asyncopd.runtime.roles import Roles
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.run_loop import RunLoop
from asyncopd.runtime.stages import LearnerStage, RolloutStage, ScoringStage
from asyncopd.runtime.watchdog import watch
from asyncopd.scheduler import commands, events
from asyncopd.telemetry.metrics import Metrics

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Training:
    """One training of a run, on roles that are up; `run` it once."""

    def __init__(
        self,
        prepared: Prepared,
        directory: RunDirectory,
        record: Record,
        roles: Roles,
        reporter: Reporter,
        metrics: Metrics,
    ) -> None:
        self._config = prepared.config
        self._tasks = prepared.world.train
        self._directory = directory
        self._record = record
        self._roles = roles
        self._reporter = reporter
        self._metrics = metrics
        concurrent = self._config.rollout.max_concurrent
        self._rollouts = AsyncioChannel("rollout", concurrent)
        self._scoring = AsyncioChannel("scoring", concurrent)
        self._learning = AsyncioChannel("learning", capacity=8)
        self._loop = RunLoop(
            record.scheduler,
            record.journal,
            rollouts=self._rollouts,
            scoring=self._scoring,
            learning=self._learning,
            release=record.payloads.release,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Train to the end, or to a checkpoint once `stop` is set. Raises what ended it otherwise."""
        self._reporter.training_begins()
        self._metrics.loop_lag.start()
        try:
            fleet = self._roles.fleet
            with fleet.followed_by(self._engine_changed):
                async with self._supervised() as spawn:
                    learner = self._start_stages(spawn)
                    spawn(watch(self._loop, fleet, self._config.runtime.watchdog_s, self._reporter.warn))
                    spawn(fleet.ended())
                    spawn(self._request_stop(stop))
                    self._begin()
                    await self._loop.run()
                    await learner.published()
        finally:
            self._metrics.loop_lag.stop()
        self._reporter.training_ends()

    def _start_stages(self, spawn: Spawn) -> LearnerStage:
        roles, payloads, loop, metrics = self._roles, self._record.payloads, self._loop, self._metrics
        rollout = RolloutStage(
            self._rollouts, roles.pool, self._tasks, payloads, loop, metrics, self._reporter.trajectory
        )
        scoring = ScoringStage(self._scoring, roles.service, payloads, loop, metrics)
        learner = LearnerStage(
            self._learning,
            roles.learner,
            roles.sync,
            roles.supervisor.drain,
            payloads,
            self._directory,
            loop,
            metrics,
            self._on_step,
            spawn,
        )
        for _ in range(self._config.rollout.max_concurrent):
            spawn(rollout.work())
            spawn(scoring.work())
        spawn(learner.work())
        return learner

    def _begin(self) -> None:
        if self._record.resumed:
            self._loop.emit(events.RolledBack, timeline=self._record.timeline, step=self._record.step)
        else:
            for engine, version in self._roles.fleet.versions.items():
                self._engine_changed(engine, version)

    def _engine_changed(self, engine: str, version: Version | None) -> None:
        if version is None:
            self._loop.emit(events.EngineLost, engine=engine)
        else:
            self._loop.emit(events.EngineReady, engine=engine, version=version)

    def _on_step(self, command: commands.TrainStep, report: StepReport) -> None:
        self._reporter.step(command, report, self._record.scheduler, self._metrics, self._roles.service.stats)

    async def _request_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._roles.supervisor.stop()  # a terminal's Ctrl-C may have ended engines too, which nobody needs now
        self._loop.emit(events.StopRequested, reason="interrupted")

    @asynccontextmanager
    async def _supervised(self) -> AsyncIterator[Spawn]:
        """Give a function that spawns tasks; one that fails ends the loop, and all end with the block."""
        tasks: list[asyncio.Task[None]] = []

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._loop.fail(error)

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            task = asyncio.create_task(work)
            task.add_done_callback(ended)
            tasks.append(task)
            return task

        try:
            yield spawn
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
