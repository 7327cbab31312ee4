"""`bench rollout`: engine and environments alone, without teacher and learner."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asyncopd.bench.workload import many
from asyncopd.config.root import TrainConfig
from asyncopd.engines.fleet import Fleet
from asyncopd.engines.supervisor import Supervisor
from asyncopd.errors import UserError
from asyncopd.records import Outcome, Trajectory, Version
from asyncopd.rollout.pool import RolloutError, RolloutPool
from asyncopd.runtime.prepare import prepare_student
from asyncopd.runtime.roles import starter
from asyncopd.runtime.world import World
from asyncopd.seams import WeightReceiver
from asyncopd.telemetry.metrics import LoopLag


@dataclass
class _Lived:
    """What came of the episodes so far, and the seconds each of them took."""

    trajectories: list[Trajectory] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failures: list[RolloutError] = field(default_factory=list)


async def bench_rollout(config: TrainConfig, episodes: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Live `episodes` training tasks, in order and over again, on engines as a training starts them.

    An episode that comes to nothing is counted, and not tried again; where all do, raises the last `RolloutError`.
    Raises `UserError` for what is wrong, and for servers that run already.
    """
    if config.engine.urls:
        raise UserError("engine.urls", "these servers have weights of their own", "leave it out, to have one started")
    prepared = await prepare_student(config)
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncopd-bench-")))
        fleet = Fleet("student", {})
        start = starter(config, prepared.student, logs, prepared.draws)
        supervisor = Supervisor(fleet, config.engine, start, _nothing_newer, say)
        stack.push_async_callback(supervisor.close)
        say("starting engines")
        await supervisor.start()
        make, seed = prepared.world.make, config.run.seed
        pool = RolloutPool(fleet, make, prepared.chat, config.rollout, seed, prepared.draws)
        stack.push_async_callback(pool.close)
        say(f"living {episodes} episodes, {config.rollout.max_concurrent} at once")
        lag = LoopLag()
        lag.start()
        began = time.perf_counter()
        lived = await _live(pool, prepared.world, episodes, config.rollout.max_concurrent)
        seconds = time.perf_counter() - began
        lag.stop()
    if not lived.trajectories:
        raise lived.failures[-1]
    return {**_figures(lived, seconds), "loop_lag_p99_ms": lag.quantile(0.99) * 1e3}


async def _nothing_newer(receiver: WeightReceiver) -> None:
    """No weights are published here, so whoever comes late has the newest."""


async def _live(pool: RolloutPool, world: World, episodes: int, concurrent: int) -> _Lived:
    numbers = iter(range(episodes))
    lived = _Lived()

    async def work() -> None:
        for number in numbers:
            sample, task = divmod(number, len(world.train))
            began = time.perf_counter()
            try:
                lived.trajectories.append(await pool.run(number, world.train[task], sample, Version(0, 0)))
                lived.seconds.append(time.perf_counter() - began)
            except RolloutError as error:
                lived.failures.append(error)

    await many(work, concurrent)
    return lived


def _figures(lived: _Lived, seconds: float) -> dict[str, Any]:
    turns = [turn for trajectory in lived.trajectories for turn in trajectory.turns]
    tokens = sum(len(segment.generated_rows) for trajectory in lived.trajectories for segment in trajectory.segments)
    return {
        "episodes": len(lived.trajectories),
        "failed": len(lived.failures),
        "success": float(np.mean([trajectory.outcome == Outcome.SUCCESS for trajectory in lived.trajectories])),
        "seconds": seconds,
        "episodes_per_second": len(lived.trajectories) / seconds,
        "turns_per_second": len(turns) / seconds,
        "tokens_per_second": tokens / seconds,
        "turn_seconds": _percentiles([turn.timings.generate for turn in turns]),
        "tool_seconds": _percentiles([turn.timings.tools for turn in turns if turn.tool_calls]),
        "episode_seconds": _percentiles(lived.seconds),
    }


def _percentiles(seconds: list[float]) -> dict[str, float | None]:
    if not seconds:
        return {"p50": None, "p90": None, "p99": None}
    return {f"p{share}": float(np.percentile(seconds, share)) for share in (50, 90, 99)}
