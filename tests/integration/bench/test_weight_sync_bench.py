"""The benchmark of weight updates runs, and what it counts comes out as promised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


def test_updates_lose_and_double_nothing() -> None:
    command = [
        sys.executable,
        "scripts/bench_weight_sync.py",
        "--quick",
        "--json",
        "--only",
        "in-flight",
        "pauses",
        "bytes",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["updates"], figures["lost"], figures["duplicated"]) == (6, 0, 0)
    assert figures["tokens"] > 0
    assert figures["versions_monotone"]
    assert figures["checksum_equal"]
    assert figures["logprob_diff_mean_after"] < 0.1
    assert figures["pause_ratio_dense"] > 0
    assert figures["pause_ratio_delta"] > 0
    assert 0 < figures["delta_bytes_ratio"]["1e-06"] < figures["delta_bytes_ratio"]["1e-05"] < 0.5
    assert figures["codec_gb_per_s"] > 0
