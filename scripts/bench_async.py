"""Asynchronous against synchronous training: same work, same seeds, slow tools.

Each repeat trains twice from `configs/quickstart.yaml` with a long-tailed tool latency: once with
`max_staleness: 0`, once with `--staleness`. The throughput ratio is the synchronous training time over the
asynchronous one. The ideal ratio of the workload is (busy + idle) / busy of the busiest stage of the
synchronous run: what is left if that stage never waited.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchlib import print_json

_CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.yaml"


def train(directory: Path, staleness: int, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run one training and return its summary."""
    latency = f"{{mean: {arguments.latency}, sigma: {arguments.sigma}}}"
    overrides = {
        "run.dir": str(directory),
        "run.seed": str(seed),
        "run.steps": str(arguments.steps),
        "scheduler.max_staleness": str(staleness),
        "rollout.max_concurrent": str(arguments.concurrent),
        "engine.max_concurrent": str(arguments.concurrent),
        "environment.options.tool_latency_s": latency,
        "evaluation.teacher": "false",
        "evaluation.tasks": str(arguments.tasks),
    }
    options = [word for field, value in overrides.items() for word in ("--set", f"{field}={value}")]
    command = [sys.executable, "-m", "asyncopd.cli.main", "train", str(_CONFIG), *options]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return json.loads((directory / "summary.json").read_text(encoding="utf-8"))


def ideal_ratio(synchronous: dict[str, Any]) -> float:
    """Return (busy + idle) / busy of the busiest stage."""
    return synchronous["training_seconds"] / max(synchronous["busy_seconds"].values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs, each with its own seed")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of a run")
    parser.add_argument("--staleness", type=int, default=4, help="max_staleness of the asynchronous run")
    parser.add_argument("--concurrent", type=int, default=128, help="episodes alive at once")
    parser.add_argument("--latency", type=float, default=0.3, help="mean tool latency in seconds")
    parser.add_argument("--sigma", type=float, default=1.0, help="sigma of its lognormal distribution")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks of each measurement")
    arguments = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(arguments.repeats):
            synchronous = train(Path(scratch) / f"sync-{seed}", 0, arguments, seed)
            asynchronous = train(Path(scratch) / f"async-{seed}", arguments.staleness, arguments, seed)
            pairs.append((synchronous, asynchronous))
    figures = {
        "throughput_ratio": statistics.median(s["training_seconds"] / a["training_seconds"] for s, a in pairs),
        "ideal_ratio": statistics.median(ideal_ratio(s) for s, _ in pairs),
        "success_sync": statistics.median(s["student_after"]["success"] for s, _ in pairs),
        "success_async": statistics.median(a["student_after"]["success"] for _, a in pairs),
        "loop_lag_p99_ms": max(a["loop_lag_p99_ms"] for _, a in pairs),
        "busy_share_sync": {
            stage: statistics.median(s["busy_seconds"][stage] / s["training_seconds"] for s, _ in pairs)
            for stage in pairs[0][0]["busy_seconds"]
        },
    }
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if arguments.json:
        print_json(figures, arguments.repeats)


if __name__ == "__main__":
    main()
