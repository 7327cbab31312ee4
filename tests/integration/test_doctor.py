"""The doctor tells whether the quickstart can run, and what to do if it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="expects vLLM")]


def doctor(*paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "200"}
    command = [sys.executable, "-m", "asyncopd.cli.main", "doctor"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_machine_that_runs_these_tests_can_run_the_quickstart() -> None:
    result = doctor()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The quickstart can run here" in result.stdout


def test_a_torchvision_built_for_another_torch_is_found_and_its_cure_named(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    broken = "raise RuntimeError('operator torchvision::nms does not exist')\n"
    (tmp_path / "torchvision" / "__init__.py").write_text(broken)
    result = doctor(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "pip uninstall torchvision" in result.stdout
    assert "The quickstart cannot run here yet" in result.stdout
