"""What generation feels of an update, against vLLM's own reload of the same weights from a warm page cache."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from asyncopd.bench.weights.moving import MovingLearner
from asyncopd.bench.weights.serving import Student
from asyncopd.engines.vllm.receiver import VllmReceiver
from asyncopd.records import PublishReport, Version
from asyncopd.seams import WeightSync


async def bench_pauses(student: Student, *, repeats: int, lr: float) -> dict[str, Any]:
    """Measure in turns a bare reload and updates with all tensors, a delta, and a broadcast, `repeats` times and one.

    A reload puts back the checkpoint's weights behind the follower's back, so that the engine serves nothing here.
    """
    learner = MovingLearner(student.model(), student.config.student.dtype, lr)
    rounds: list[dict[str, float]] = []
    async with student.served("keep") as (_, receiver):
        files = student.sync(receiver, keyframe_every=2)  # every other update is a delta
        broadcasts = student.broadcasts(receiver)
        ways: tuple[WeightSync, ...] = (files, files, broadcasts)
        try:
            for number in range(repeats + 1):
                bare = await _reload_seconds(receiver)
                reports: list[PublishReport] = []
                for offset, sync in enumerate(ways):
                    learner.step()
                    reports.append(await sync.publish(Version(0, 3 * number + offset + 1), learner))
                dense, delta, gloo = reports
                assert dense.bytes == dense.dense_bytes > delta.bytes, "the second was to be a delta on the first"
                rounds.append(
                    {
                        "bare_reload": bare,
                        "disk_read": _read_seconds(student.directory),
                        "pause_dense": dense.pause_seconds,
                        "pause_delta": delta.pause_seconds,
                        "pause_gloo": gloo.pause_seconds,
                        "prepare_dense": dense.prepare_seconds,
                        "prepare_delta": delta.prepare_seconds,
                        "prepare_gloo": gloo.prepare_seconds,
                        "send_dense": dense.send_seconds,
                        "send_delta": delta.send_seconds,
                        "send_gloo": gloo.send_seconds,
                    }
                )
        finally:
            files.close()
            broadcasts.close()
    measured = rounds[1:]  # the first reload touches its pages for the first time
    return {
        "pause_ratio_dense": statistics.median(r["pause_dense"] / r["bare_reload"] for r in measured),
        "pause_ratio_delta": statistics.median(
            r["pause_delta"] / (r["bare_reload"] - r["disk_read"]) for r in measured
        ),
        "update_seconds": {name: statistics.median(r[name] for r in measured) for name in measured[0]},
    }


async def _reload_seconds(receiver: VllmReceiver) -> float:
    began = time.perf_counter()
    await receiver.control.call("reload_weights")
    return time.perf_counter() - began


def _read_seconds(directory: Path) -> float:
    """Return what reading the checkpoint's bytes takes."""
    began = time.perf_counter()
    for path in directory.glob("*.safetensors"):
        path.read_bytes()
    return time.perf_counter() - began
