"""What a run counted goes on in the process that resumes it."""

from __future__ import annotations

import json

from asyncopd.runtime.totals import restore, totals
from asyncopd.scoring.stats import ScoringStats
from asyncopd.telemetry.engine_counts import EngineCounts
from asyncopd.telemetry.metrics import Metrics


def test_a_resumed_run_counts_on() -> None:
    before = Metrics()
    before.tokens["rollout"] = 40
    before.busy["rollout"].add(3.0)
    before.engines = {"student-0": EngineCounts(3, 30, 2, "died"), "student-0.1": EngineCounts(1, 10)}
    written = json.loads(json.dumps(totals(before, ScoringStats(hits=5))))
    after, scoring = Metrics(), ScoringStats()
    # Engines of the same name have started, and measured something already.
    after.engines = {"student-0": EngineCounts(2, 5)}
    restore(written, after, scoring)
    assert after.engines == {"student-0": EngineCounts(5, 35, 2, ""), "student-0.1": EngineCounts(1, 10)}
    assert (after.tokens["rollout"], after.busy["rollout"].seconds, scoring.hits) == (40, 3.0, 5)
