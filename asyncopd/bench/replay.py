"""`bench replay`: the learner alone, on the batches that a run recorded.

A run directory keeps every payload, and its journal says which attempts made each step; so the learner does here
what it did there, and its losses tell whether it did.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError
from asyncopd.models.resolve import resolve
from asyncopd.records import StepReport, TrajectoryMeta
from asyncopd.runtime.journal import read_journal
from asyncopd.runtime.learner_process import LearnerProcess, MemberRef, Memory
from asyncopd.runtime.payloads import PayloadRef, recorded_payloads
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.scheduler import events

_MIB = 2**20


@dataclass(frozen=True)
class RecordedStep:
    """One optimizer step of a run: its members in order, the tokens their segments have, and its loss.

    A run that was killed may have had no time to write the loss of its last step.
    """

    members: list[MemberRef]
    tokens: int
    loss: float | None


async def bench_replay(
    path: Path, overrides: Sequence[str], steps: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Take the first `steps` recorded steps of the run at `path` again, by default all, with `overrides`.

    Raises `UserError` if there is no run, or not all of it.
    """
    directory = RunDirectory(path)
    if not directory.journal.exists():
        raise UserError(str(path), "holds no recorded training", "name the directory of a run of `asyncopd train`")
    config = load(directory.config, overrides, TrainConfig)
    recorded = recorded_steps(directory)[:steps]
    if not recorded:
        raise UserError(str(path), "no step of it is recorded", "name a run that took one")
    say(f"starting a learner for {len(recorded)} steps")
    learner = await LearnerProcess.start(config, resolve(config.student.model), checkpoint=None)
    try:
        began = time.perf_counter()
        reports = []
        for number, step in enumerate(recorded):
            reports.append(await learner.step(number, step.members))
        return _figures(recorded, reports, time.perf_counter() - began, await learner.peak_memory())
    finally:
        await learner.close()


def recorded_steps(directory: RunDirectory) -> list[RecordedStep]:
    """Return the steps that led to the run's weights, in order; those that were rolled back are not among them."""
    metas: dict[int, TrajectoryMeta] = {}
    scored: dict[int, str] = {}
    trained: list[list[int]] = []
    for event in read_journal(directory.journal):
        match event:
            case events.RolloutFinished():
                metas[event.meta.attempt] = event.meta
            case events.Scored():
                scored[event.attempt] = event.payload
            case events.StepTrained():
                trained.append([report.attempt for report in event.attempts])
            case events.RolledBack():
                del trained[event.step :]
    payloads = recorded_payloads(directory.payloads)
    losses = _losses(directory.metrics)
    return [
        RecordedStep(
            members=[_member(metas[attempt], scored.get(attempt), payloads, directory) for attempt in attempts],
            tokens=sum(metas[attempt].tokens.prompt + metas[attempt].tokens.generated for attempt in attempts),
            loss=losses.get(number),
        )
        for number, attempts in enumerate(trained, 1)
    ]


def _losses(metrics: Path) -> dict[int, float]:
    """Return the loss of each step, by its number from 1; a line that a crash tore does not count."""
    data = metrics.read_bytes()
    lines = map(json.loads, data[: data.rfind(b"\n") + 1].splitlines())
    return {line["step"]: line["loss"] for line in lines}


def _member(
    meta: TrajectoryMeta, scores: str | None, payloads: dict[str, PayloadRef], directory: RunDirectory
) -> MemberRef:
    def ref(key: str) -> PayloadRef:
        if key not in payloads:
            raise UserError(
                str(directory.payloads), f"{key!r} is not there", "bring the file back, or replay fewer --steps"
            )
        return payloads[key]

    return MemberRef(
        attempt=meta.attempt,
        group=meta.group,
        domain=meta.domain,
        reward=meta.reward,
        trajectory=ref(meta.payload),
        scores=None if scores is None else ref(scores),
    )


def _figures(
    recorded: Sequence[RecordedStep], reports: Sequence[StepReport], seconds: float, memory: Memory
) -> dict[str, Any]:
    trained = sum(report.tokens for report in reports)
    took = [report.seconds for report in reports]
    return {
        "steps": len(reports),
        "seconds": seconds,
        "trained_tokens_per_second": trained / sum(took),
        "read_tokens_per_second": sum(step.tokens for step in recorded) / sum(took),
        "step_seconds": {"median": statistics.median(took), "first": took[0], "max": max(took)},
        "outside_share": 1 - sum(took) / seconds,
        "peak_memory_mib": {"resident": memory.resident / _MIB, "gpu": memory.gpu / _MIB},
        "loss_difference_max": max(
            (
                abs(step.loss - report.metrics["loss"])
                for step, report in zip(recorded, reports, strict=True)
                if step.loss is not None
            ),
            default=None,
        ),
    }
