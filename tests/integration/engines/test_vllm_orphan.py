"""What is left of vLLM when the process that started it is killed."""

from __future__ import annotations

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
    section = EngineSection(max_context=512, kv_cache_mib=16)
    await start_engine("orphan", Path(sys.argv[1]), section, dtype="float32", threads=1, seed=0)
    print("started", flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_core_ends_with_a_process_that_is_killed(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    command = [sys.executable, script, checkpoints(0, tied=True)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert any(line == "started\n" for line in owner.stdout)
        children = psutil.Process(owner.pid).children(recursive=True)
        assert any("EngineCore" in child.name() for child in children)
        owner.kill()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert gone
    assert not alive
