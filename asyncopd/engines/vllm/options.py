"""`engine.options` before vLLM is started, or even imported: names it knows, and none that another field decides."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import json
from pathlib import Path

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.vllm.cpu_build import is_cpu_build
from asyncopd.errors import UserError

_LORA = "adapters are merged into the weights: set learner.lora and weights.lora"
_DRAFT = "the draft's weights would not follow the student's: leave it out"
_REPLICAS = "set engine.replicas"
_OURS = {
    "model": "set student.model",
    "model_weights": "set student.model",
    "tokenizer": "engines exchange token ids: leave it out",
    "skip_tokenizer_init": "engines exchange token ids: leave it out",
    "generation_config": "the rollout section says how to sample",
    "override_generation_config": "the rollout section says how to sample",
    "dtype": "set student.dtype",
    "seed": "set run.seed",
    "max_model_len": "set engine.max_context",
    "max_num_seqs": "set engine.max_concurrent",
    "max_logprobs": "the objective says how many it needs",
    "logprobs_mode": "log-probabilities are those of the distribution sampled: leave it out",
    "logits_processors": "the objective says which draws it needs",
    "kv_cache_memory_bytes": "set engine.kv_cache_mib",
    "gpu_memory_utilization": "set engine.gpu_memory_fraction",
    "weight_transfer_config": "set weights.use",
    "worker_extension_cls": "weights and draws need their own: leave it out",
    "distributed_executor_backend": "it follows from tensor_parallel_size and pipeline_parallel_size",
    "data_parallel_size": _REPLICAS,
    "data_parallel_size_local": _REPLICAS,
    "enable_lora": _LORA,
    "max_loras": _LORA,
    "max_lora_rank": _LORA,
    "default_mm_loras": _LORA,
    "speculative_config": _DRAFT,
    "spec_method": _DRAFT,
    "spec_model": _DRAFT,
    "spec_tokens": _DRAFT,
}
_OURS_ON_CPU = {
    "tensor_parallel_size": _REPLICAS,
    "pipeline_parallel_size": _REPLICAS,
    "enable_chunked_prefill": "vLLM 0.32 dies of it on a CPU: leave it out",
}
_CPU_QUANTIZATION = "fp8_per_channel"


def check_options(section: EngineSection, student: Path, dtype: Dtype) -> None:
    """Raise `UserError` for options that no engine of `section` takes, or that `student` cannot be served with."""
    if not section.options:
        _check_student(student)
        return
    if section.use == "torch":
        raise UserError("engine.options", "are vLLM's, and engine.use is torch", "leave them out, or use vllm")
    if section.urls:
        raise UserError("engine.options", "are for servers started here", "start those at engine.urls with them")
    on_cpu = is_cpu_build()
    for name in section.options:
        remedy = _OURS.get(name) or (_OURS_ON_CPU.get(name) if on_cpu else None)
        if remedy is not None:
            raise UserError(f"engine.options.{name}", "is not free", remedy)
        _check_name(name)
    _check_student(student)
    _check_quantization(section.options.get("quantization"), dtype, on_cpu)


def _check_name(name: str) -> None:
    known = engine_argument_names()
    if not known or name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see vLLM's engine arguments"
    raise UserError(f"engine.options.{name}", "is no engine argument of the vLLM installed", hint)


@functools.cache
def engine_argument_names() -> frozenset[str]:
    """Return the fields of vLLM's `AsyncEngineArgs`, read from its source in a few milliseconds; none without vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    tree = ast.parse((Path(spec.origin).parent / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("EngineArgs")]
    return frozenset(
        field.target.id
        for node in classes
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def _check_student(student: Path) -> None:
    quantized = json.loads((student / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    if quantized is not None:
        method = quantized.get("quant_method", "quantised")
        remedy = "give its float weights, and let engine.options.quantization quantise what is served"
        raise UserError("student.model", f"its weights are {method}, which no optimizer can move", remedy)


def _check_quantization(method: str | None, dtype: Dtype, on_cpu: bool) -> None:
    if method is None:
        return
    field = f"engine.options.quantization {method}"
    if on_cpu and method != _CPU_QUANTIZATION:
        raise UserError(field, "is not known to work with vLLM's CPU build", f"use {_CPU_QUANTIZATION}")
    if dtype == "float32":
        raise UserError(field, "vLLM quantises bfloat16 weights only", "set student.dtype to bfloat16")
