"""What vLLM says while it is imported is for its developers, not for who runs a training."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

IMPORT = """
import logging
from asyncopd.engines.vllm.launch import vllm_environment
logging.basicConfig()
with vllm_environment(1):
    import vllm.config
"""


def test_importing_says_errors_only() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    result = subprocess.run([sys.executable, "-c", IMPORT], env=environment, capture_output=True, text=True, check=True)
    assert result.stderr == ""
