"""What is left of vLLM when the process that started it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.integration

OWNER = """
import asyncio, sys, time
from pathlib import Path
from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine

async def main():
    section = EngineSection(use=sys.argv[2], max_context=512, kv_cache_mib=16)
    await start_engine("orphan", Path(sys.argv[1]), section, dtype="float32", threads=1, seed=0)
    print("started", flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("use", ["vllm", "vllm_server"])
def test_the_core_ends_with_a_process_that_is_killed(
    use: str, checkpoints: Callable[..., Path], tmp_path: Path
) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    command = [sys.executable, script, checkpoints(0, tied=True), use]
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as owner:
        assert owner.stdout is not None
        assert any(line == "started\n" for line in owner.stdout)
        children = psutil.Process(owner.pid).children(recursive=True)
        assert any("EngineCore" in child.name() for child in children)
        owner.kill()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert gone
    assert not alive
    assert not list(tmp_path.glob("asyncopd-*")), "the socket's directory is left"
