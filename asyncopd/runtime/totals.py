"""What a run has counted, in a form that outlives its process: a line of `metrics.jsonl` holds it."""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncopd.scoring.stats import ScoringStats
from asyncopd.telemetry.engine_counts import EngineCounts
from asyncopd.telemetry.metrics import Metrics


def totals(metrics: Metrics, scoring: ScoringStats) -> dict[str, Any]:
    """Return the counters as `restore` reads them."""
    return {
        "tokens": dict(metrics.tokens),
        "updates": dict(metrics.updates),
        "engines": {name: dataclasses.asdict(counts) for name, counts in metrics.engines.items()},
        "busy_seconds": {stage: round(clock.seconds, 3) for stage, clock in metrics.busy.items()},
        "scoring": dataclasses.asdict(scoring),
    }


def restore(counted: dict[str, Any], metrics: Metrics, scoring: ScoringStats) -> None:
    """Let new counters go on from what was `counted`."""
    metrics.tokens.update(counted["tokens"])
    metrics.updates.update(counted["updates"])
    for name, earlier in counted["engines"].items():
        metrics.engines[name] = EngineCounts(**earlier).followed_by(metrics.engines.get(name))
    for stage, seconds in counted["busy_seconds"].items():
        metrics.busy[stage].add(seconds)
    for name, value in counted["scoring"].items():
        setattr(scoring, name, value)
