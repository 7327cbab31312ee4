"""vLLM's engine arguments for a configuration, for the engine in this process and for servers alike.

Nothing here imports vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.draws import worker_spec
from asyncopd.records import NO_DRAWS, DrawSpec

DRAWS_PROCESSOR = "asyncopd.engines.vllm.draws:DrawsProcessor"
EXTENSION = "asyncopd.engines.vllm.extension.Extension"
BACKEND = "asyncopd_mapped"  # of the weight transfer, see `transfer.py`

_MIB = 2**20
_BATCHED_TOKENS = 2048  # of one step, at least; a whole context always fits beside the running requests


def engine_arguments(
    directory: Path, section: EngineSection, *, dtype: Dtype, seed: int, draws: DrawSpec, on_cpu: bool
) -> dict[str, Any]:
    """Return the arguments of vLLM's `AsyncEngineArgs` that serve the checkpoint in `directory`, as plain values.

    `draws` are the most a request may ask for; `on_cpu` says whether vLLM is a CPU build.
    """
    memory = (
        {"kv_cache_memory_bytes": section.kv_cache_mib * _MIB}
        if on_cpu
        else {"gpu_memory_utilization": section.gpu_memory_fraction}
    )
    return {
        "model": str(directory),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # sampling is the request's alone, nothing from the checkpoint
        "dtype": dtype,
        "seed": seed,
        "max_model_len": section.max_context,
        "max_num_seqs": section.max_concurrent,
        "max_logprobs": draws.head,
        **({"logits_processors": [DRAWS_PROCESSOR]} if worker_spec(draws) != NO_DRAWS else {}),
        "worker_extension_cls": EXTENSION,
        "logprobs_mode": "processed_logprobs",  # log μ of the distribution sampled, after temperature
        "distributed_executor_backend": "uni" if _workers(section) == 1 else "mp",
        "enforce_eager": on_cpu,  # compiling takes minutes there and gains little
        # vLLM 0.32 rewinds a seeded sampler after each partial prefill, which kills its core on a CPU.
        "enable_chunked_prefill": not on_cpu,
        "max_num_batched_tokens": max(_BATCHED_TOKENS, section.max_context + section.max_concurrent),
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "weight_transfer_config": {"backend": BACKEND},
        **memory,
        **section.options,
    }


def _workers(section: EngineSection) -> int:
    parallel: int = section.options.get("tensor_parallel_size", 1) * section.options.get("pipeline_parallel_size", 1)
    return parallel


def command_line(arguments: dict[str, Any]) -> list[str]:
    """Return `arguments` as the options of vLLM's server."""
    words: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        match value:
            case bool():
                words.append(f"--{option}" if value else f"--no-{option}")
            case dict():
                words += [f"--{option}", json.dumps(value)]
            case list() | tuple():
                words += [f"--{option}", *map(str, value)]
            case _:
                words += [f"--{option}", str(value)]
    return words
