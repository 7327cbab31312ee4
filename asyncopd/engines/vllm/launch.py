"""Starting vLLM: its arguments, and the environment variables it wants for as long as it reads them.

vLLM is configured through the environment of the process that starts it, and changes that environment
itself (threads, preloaded libraries). Its core inherits what it needs; this process gets its own
variables back.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub.constants  # noqa: F401 - reads its variables now, before they say "offline"

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.vllm.arguments import engine_arguments
from asyncopd.engines.vllm.cpu_build import cpu_build_variables
from asyncopd.records import DrawSpec
from asyncopd.seams import EngineDied

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_environment_lock = threading.Lock()
_KILLED = re.compile(r"Failed core proc\(s\): \{[^}]*: -(\d+)")  # an exit code below 0 is a signal's


def vllm_variables(threads: int) -> dict[str, str]:
    """Return the variables that processes of vLLM want, one of them for each engine."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # `auto` puts every engine on the first core
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker inside the core's process, not in a third one
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the worker's extension and the draws read the batch of the first one
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # the core shares this terminal; its errors are still seen
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def vllm_environment(threads: int) -> Iterator[None]:
    """Hold the variables for importing and starting vLLM, one start at a time; undo every change at the end."""
    wanted = vllm_variables(threads)
    with _environment_lock:
        before = dict(os.environ)
        os.environ.update(wanted)
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would override `engine.kv_cache_mib`
        # vLLM warns while it is imported too, before it has set its own level.
        logging.getLogger("vllm").setLevel(wanted["VLLM_LOGGING_LEVEL"].upper())
        try:
            yield
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)


async def launch(
    directory: Path, section: EngineSection, *, dtype: Dtype, threads: int, seed: int, draws: DrawSpec
) -> AsyncLLM:
    """Start vLLM in a thread, so that the event loop goes on; given up, it leaves no process behind.

    Raises what vLLM raises for a model it refuses, and `EngineDied` where its core was killed meanwhile.
    """
    before = set(multiprocessing.active_children())
    task = asyncio.create_task(
        asyncio.to_thread(_construct, directory, section, dtype, threads, seed, draws), name="vllm-launch"
    )
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_discard)
        for process in set(multiprocessing.active_children()) - before:
            if process.name.startswith("EngineCore"):
                process.kill()  # the thread cannot be stopped, but without its core it fails at once
        raise
    except RuntimeError as error:
        killed = _KILLED.search(str(error))
        if killed is None:
            raise
        raise EngineDied(f"vLLM's engine core was killed by signal {killed[1]} while it started") from error


def _discard(task: asyncio.Task[AsyncLLM]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().shutdown(0.0)


def _construct(
    directory: Path, section: EngineSection, dtype: Dtype, threads: int, seed: int, draws: DrawSpec
) -> AsyncLLM:
    with vllm_environment(threads):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu = current_platform.is_cpu()
        if on_cpu:
            os.environ.update(cpu_build_variables(os.environ))
        arguments = engine_arguments(directory, section, dtype=dtype, seed=seed, draws=draws, on_cpu=on_cpu)
        # The fleet says it in a line when a core dies, and what happens then.
        logging.getLogger(AsyncLLM.__module__).addFilter(_is_no_death)
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def _is_no_death(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("AsyncLLM output_handler failed")
