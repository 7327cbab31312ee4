"""One training run in the local runtime: from its start, or its last checkpoint, to its end."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncopd.records import Version
from asyncopd.runtime.agreement import compare
from asyncopd.runtime.interruption import Interruption
from asyncopd.runtime.measure import measure_on
from asyncopd.runtime.prepare import Prepared
from asyncopd.runtime.record import open_record
from asyncopd.runtime.reporting import Reporter
from asyncopd.runtime.roles import open_roles, serving
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.totals import restore
from asyncopd.runtime.training import Training
from asyncopd.seams import Generator
from asyncopd.telemetry.metrics import Metrics


async def run_once(
    prepared: Prepared, directory: RunDirectory, reporter: Reporter, interruption: Interruption, *, resume: bool
) -> dict[str, Any]:
    """Train to the end, measure, export and return the summary.

    Raises `CancelledError` where an interruption ended it early, and `WorkerLost`, `EngineDied` and
    `PublishFailed` when a process died; calling again with `resume` goes on.
    """
    metrics = Metrics()
    async with open_record(prepared, directory, resume=resume) as record:
        counted = reporter.go_on(record.step, metrics)
        reporter.stage("starting engines, teacher, learner and score cache")
        async with open_roles(prepared, directory, record, metrics, reporter.warn) as roles:
            if counted is not None:
                restore(counted, metrics, roles.service.stats)
            await _measure(prepared, reporter, roles.engine, "student_before", Version(0, 0))
            with interruption.patiently():
                await Training(prepared, directory, record, roles, reporter, metrics).run(interruption.asked)
            if interruption.asked.is_set():
                raise asyncio.CancelledError
            trained = Version(record.timeline, prepared.config.run.steps)
            engines = list(roles.fleet.versions)
            reporter.compared(trained.step, await compare(prepared, roles.fleet, engines, roles.learner, trained))
            await _measure(prepared, reporter, roles.engine, "student_after", trained)
            await roles.learner.export(directory.student)
            service = roles.service
        evaluation = prepared.config.evaluation
        if evaluation.teacher and evaluation.tasks and "teacher" not in reporter.evaluations:
            reporter.stage("starting an engine for the teacher")
            async with serving(prepared.config, "teacher", prepared.teacher) as engine:
                await _measure(prepared, reporter, engine, "teacher", Version(0, 0))
        return reporter.summary(record.scheduler, metrics, service)


async def _measure(prepared: Prepared, reporter: Reporter, engine: Generator, name: str, version: Version) -> None:
    config = prepared.config
    if config.evaluation.tasks == 0 or name in reporter.evaluations:
        return
    reporter.stage(f"measuring {name.replace('_', ' ')} on {config.evaluation.tasks} held-out tasks")
    reporter.evaluated(name, await measure_on(config, prepared.world, prepared.chat, engine, version))
