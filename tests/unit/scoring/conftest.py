"""Requests, trajectories, and a teacher that answers by hash and does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import xxhash

from asyncopd.records import (
    LossMask,
    Outcome,
    ScoreRequest,
    Scores,
    Segment,
    Support,
    SupportKind,
    Task,
    Trajectory,
)
from asyncopd.scoring.cache.packing import STEP_16

TOPK = Support(kind=SupportKind.TEACHER_TOPK, width=4)


def make_segment(ids: Sequence[int], prompt: int = 2) -> Segment:
    """Return a segment whose first `prompt` ids are context and whose others were generated in turn 0."""
    length = len(ids)
    mask_T = np.where(np.arange(length) < prompt, LossMask.CONTEXT, LossMask.TRAIN).astype(np.uint8)
    return Segment(
        ids_T=np.array(ids, np.int32),
        loss_mask_T=mask_T,
        logp_T=np.zeros(length, np.float32),
        version_T=np.where(mask_T == 1, 0, -1).astype(np.int64),
        mixed_kv_T=np.zeros(length, np.uint8),
        turn_T=np.where(mask_T == 1, 0, -1).astype(np.int16),
    )


def make_trajectory(*segments: Sequence[int]) -> Trajectory:
    return Trajectory(
        task=Task(id="t", domain="d", data={}),
        attempt=0,
        prompt=[],
        segments=[make_segment(ids) for ids in segments],
        turns=[],
        outcome=Outcome.SUCCESS,
        reward=0.0,
    )


def make_request(ids: Sequence[int], support: Support = TOPK) -> ScoreRequest:
    segment = make_segment(ids)
    rows_R = segment.trained_rows.astype(np.int32)
    return ScoreRequest(
        context_ids_C=segment.ids_T, scored_ids_R=segment.ids_T[rows_R], row_map_R=rows_R, support=support
    )


def answer(request: ScoreRequest) -> Scores:
    """Return scores that depend on every context id and differ between any two requests; none needs rounding."""
    rows, width = len(request.scored_ids_R), request.support.width
    seed = xxhash.xxh32(request.context_ids_C.tobytes()).intdigest()
    random = np.random.default_rng(seed)
    ids_RK = np.argsort(random.random((rows, 50)), axis=1)[:, :width].astype(np.int32)
    mass_RK = -np.sort(-random.dirichlet(np.ones(width + 1), rows)[:, :width], axis=1)
    logp_RK = np.rint(np.log(mass_RK) / STEP_16) * STEP_16
    return Scores(support=request.support, ids_RK=ids_RK, logp_RK=logp_RK.astype(np.float32))


class ScriptedTeacher:
    """Answers by `answer`, unless `mischief`, given the number of the call, returns or raises something.

    `calls` holds the context ids of the requests of each call; `gate` holds calls back while cleared.
    """

    supports = (Support(kind=SupportKind.TEACHER_TOPK, width=50),)

    def __init__(self, mischief: Callable[[int, Sequence[ScoreRequest]], list[Scores] | None] | None = None) -> None:
        self.identity = "scripted"
        self.calls: list[list[list[int]]] = []
        self.alive = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self._mischief = mischief

    def view(self, trajectory: Trajectory, support: Support) -> list[ScoreRequest]:
        return [
            msgspec.structs.replace(
                make_request([0, 0]),
                context_ids_C=segment.ids_T,
                scored_ids_R=segment.ids_T[segment.trained_rows],
                row_map_R=segment.trained_rows.astype(np.int32),
                support=support,
            )
            for segment in trajectory.segments
        ]

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        self.calls.append([request.context_ids_C.tolist() for request in requests])
        self.called.set()
        self.alive += 1
        assert self.alive == 1, "two calls at once"
        try:
            await self.gate.wait()
        finally:
            self.alive -= 1
        wrong = self._mischief(len(self.calls), requests) if self._mischief else None
        return [answer(request) for request in requests] if wrong is None else wrong

    async def close(self) -> None: ...


@pytest.fixture
def scripted_teacher() -> type[ScriptedTeacher]:
    return ScriptedTeacher


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Return a maker of trajectories: one argument a segment, its ids."""
    return make_trajectory


@pytest.fixture
def request_of() -> Callable[..., ScoreRequest]:
    return make_request


@pytest.fixture
def answer_of() -> Callable[[ScoreRequest], Scores]:
    return answer
