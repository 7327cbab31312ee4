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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub.constants  # noqa: F401 - reads its variables now, before they say "offline"

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.vllm.cpu_build import cpu_build_variables

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_MIB = 2**20
_BATCHED_TOKENS = 2048  # of one step, at least; a whole context always fits beside the running requests
_environment_lock = threading.Lock()


@contextmanager
def vllm_environment(threads: int) -> Iterator[None]:
    """Hold the variables for importing and starting vLLM, one start at a time; undo every change at the end."""
    wanted = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # `auto` puts every engine on the first core
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker inside the core's process, not in a third one
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # the core shares this terminal; its errors are still seen
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
    }
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
    directory: Path, section: EngineSection, *, dtype: Dtype, threads: int, seed: int, max_logprobs: int
) -> AsyncLLM:
    """Start vLLM in a thread, so that the event loop goes on; given up, it leaves no process behind."""
    before = set(multiprocessing.active_children())
    task = asyncio.create_task(
        asyncio.to_thread(_construct, directory, section, dtype, threads, seed, max_logprobs), name="vllm-launch"
    )
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_discard)
        for process in set(multiprocessing.active_children()) - before:
            if process.name.startswith("EngineCore"):
                process.kill()  # the thread cannot be stopped, but without its core it fails at once
        raise


def _discard(task: asyncio.Task[AsyncLLM]) -> None:
    if task.exception() is None:
        task.result().shutdown(0.0)


def _construct(
    directory: Path, section: EngineSection, dtype: Dtype, threads: int, seed: int, max_logprobs: int
) -> AsyncLLM:
    with vllm_environment(threads):
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from asyncopd.engines.vllm.transfer import BACKEND

        on_cpu = current_platform.is_cpu()
        if on_cpu:
            os.environ.update(cpu_build_variables(os.environ))
        memory = (
            {"kv_cache_memory_bytes": section.kv_cache_mib * _MIB}
            if on_cpu
            else {"gpu_memory_utilization": section.gpu_memory_fraction}
        )
        arguments = AsyncEngineArgs(
            model=str(directory),
            skip_tokenizer_init=True,
            generation_config="vllm",  # sampling is the request's alone, nothing from the checkpoint
            dtype=dtype,
            seed=seed,
            max_model_len=section.max_context,
            max_num_seqs=section.max_concurrent,
            max_logprobs=max_logprobs,
            logprobs_mode="processed_logprobs",  # log μ of the distribution sampled, after temperature
            distributed_executor_backend="uni",
            enforce_eager=on_cpu,  # compiling takes minutes there and gains little
            # vLLM 0.32 rewinds a seeded sampler after each partial prefill, which kills its core on a CPU.
            enable_chunked_prefill=not on_cpu,
            max_num_batched_tokens=max(_BATCHED_TOKENS, section.max_context + section.max_concurrent),
            disable_log_stats=True,
            use_tqdm_on_load=False,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            **memory,
        )
        return AsyncLLM.from_engine_args(arguments)
