"""The learner in a process of its own; batches cross as payload references, weights as mapped files."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import msgspec
import torch

from asyncopd.config.root import TrainConfig
from asyncopd.learner.learner import Learner
from asyncopd.records import (
    Batch,
    Differences,
    Sample,
    Scores,
    Segment,
    SendOrder,
    StepReport,
    Trajectory,
    WeightFile,
    decode,
)
from asyncopd.runtime.payloads import PayloadRef, read_payload
from asyncopd.runtime.process import WorkerProcess
from asyncopd.tensors.sender import Sender


class MemberRef(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a step as it crosses to the learner: where its trajectory and scores lie."""

    attempt: int
    group: int
    domain: str
    reward: float
    trajectory: PayloadRef
    scores: PayloadRef | None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes resident in memory, and allocated by torch on its GPU."""

    resident: int
    gpu: int


class LearnerProcess:
    """Drives the learner; calls run in the order they are made."""

    def __init__(self, process: WorkerProcess, config: TrainConfig) -> None:
        self._process = process
        self._timeout_s = config.learner.timeout_s

    @classmethod
    async def start(
        cls, config: TrainConfig, student: Path, checkpoint: Path | None, timeline: int = 0
    ) -> LearnerProcess:
        """Build the learner from `student`, continuing `timeline` from `checkpoint` if there is one."""
        learner = cls(await WorkerProcess.start("learner", config.runtime.threads.learner), config)
        try:
            await learner._process.call(_build, config, student, checkpoint, timeline, timeout_s=learner._timeout_s)
        except BaseException:
            learner.kill()
            raise
        return learner

    async def step(self, step: int, members: list[MemberRef]) -> StepReport:
        """Take optimizer step `step`. Raises `WorkerLost`, `NonFiniteLoss`, `DamagedPayload`."""
        return await self._process.call(_step, step, members, timeout_s=self._timeout_s)

    async def send(self, order: SendOrder) -> WeightFile:
        """Send the weights as ordered; this is the learner's `WeightSource`.

        Given up, what NCCL waits for cannot be interrupted, so the process ends; all else ends by its own deadline.
        """
        try:
            return await self._process.call(_send, order, timeout_s=self._timeout_s)
        except asyncio.CancelledError:
            if order.path.startswith("nccl:"):
                self._process.kill()
            raise

    async def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        await self._process.call(_save, directory, timeout_s=self._timeout_s)

    async def export(self, directory: Path) -> None:
        """Write an ordinary Hugging Face checkpoint."""
        await self._process.call(_export, directory, timeout_s=self._timeout_s)

    async def compare(self, segments: list[Segment]) -> Differences:
        """Compare engine and learner over generated tokens of the weights as they are."""
        return await self._process.call(_compare, segments, timeout_s=self._timeout_s)

    async def peak_memory(self) -> Memory:
        """Return the most memory the process ever had."""
        return await self._process.call(_peak_memory, timeout_s=self._timeout_s)

    def kill(self) -> None:
        self._process.kill()

    async def close(self) -> None:
        await self._process.close()


# --- in the worker ---------------------------------------------------------------------------------

_learner: Learner | None = None
_sender = Sender()


def _built() -> Learner:
    assert _learner is not None, "the learner's process was called before it was built"
    return _learner


def _build(config: TrainConfig, student: Path, checkpoint: Path | None, timeline: int) -> None:
    global _learner
    _learner = Learner(
        student,
        model=config.student,
        section=config.learner,
        objective=config.objective,
        freshness=config.scheduler.freshness,
        max_staleness=config.scheduler.max_staleness,
        temperature=config.rollout.temperature,
        steps=config.run.steps,
        seed=config.run.seed,
        timeline=timeline,
        publish=config.weights.lora,
    )
    if checkpoint is not None:
        _learner.restore(checkpoint)


def _step(step: int, members: list[MemberRef]) -> StepReport:
    samples = [sample for member in members for sample in _samples(member)]
    return _built().step(Batch(step=step, samples=samples))


def _samples(member: MemberRef) -> list[Sample]:
    trajectory = decode(read_payload(member.trajectory), Trajectory)
    scores: list[Scores | None] = [None] * len(trajectory.segments)
    if member.scores is not None:
        scores = decode(read_payload(member.scores), list[Scores | None])
    return [
        Sample(
            attempt=member.attempt,
            group=member.group,
            domain=member.domain,
            segment=segment,
            scores=segment_scores,
            reward=member.reward,
        )
        for segment, segment_scores in zip(trajectory.segments, scores, strict=True)
    ]


def _send(order: SendOrder) -> WeightFile:
    learner = _built()
    at_step = learner.step_count == order.version.step
    assert at_step or _sender.holds(order), f"asked for version {order.version} at step {learner.step_count}"
    return _sender.send(order, learner.named_tensors())


def _save(directory: Path) -> None:
    _built().save(directory)


def _export(directory: Path) -> None:
    _built().export(directory)


def _compare(segments: list[Segment]) -> Differences:
    return _built().compare(segments)


def _peak_memory() -> Memory:
    unit = 1 if sys.platform == "darwin" else 1024
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return Memory(resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, gpu=gpu)
