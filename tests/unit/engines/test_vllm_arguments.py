"""What vLLM is started with: our arguments, the user's options, and the options that are refused."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.vllm import options
from asyncopd.engines.vllm.arguments import command_line, engine_arguments
from asyncopd.engines.vllm.options import check_options
from asyncopd.errors import UserError
from asyncopd.records import NO_DRAWS

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM says what it takes")


@pytest.fixture
def student(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def arguments(on_cpu: bool = True, **section: Any) -> dict[str, Any]:
    return engine_arguments(
        Path("/model"), EngineSection(**section), dtype="float32", seed=3, draws=NO_DRAWS, on_cpu=on_cpu
    )


def test_options_reach_vllm_and_replace_our_defaults() -> None:
    found = arguments(options={"enforce_eager": False, "block_size": 1})
    assert (found["enforce_eager"], found["block_size"], found["seed"]) == (False, 1, 3)


def test_several_workers_get_a_process_each() -> None:
    assert arguments()["distributed_executor_backend"] == "uni"
    assert arguments(False, options={"tensor_parallel_size": 2})["distributed_executor_backend"] == "mp"


def test_arguments_become_words_of_a_command() -> None:
    words = command_line(
        {"max_model_len": 8, "on_off": True, "off_on": False, "config": {"a": [1]}, "list": ["x", "y"]}
    )
    assert words == ["--max-model-len", "8", "--on-off", "--no-off-on", "--config", '{"a": [1]}', "--list", "x", "y"]


@needs_vllm
def test_our_own_arguments_are_all_known_to_the_vllm_installed() -> None:
    known = options.engine_argument_names()
    assert len(known) > 100
    for on_cpu in (True, False):
        assert set(arguments(on_cpu)) <= known
    assert set(options._OURS) | set(options._OURS_ON_CPU) <= known


@pytest.mark.parametrize("name", ["quantization", "enable_prefix_caching", "block_size", "max_num_batched_tokens"])
def test_engine_arguments_of_vllm_are_taken(student: Path, name: str) -> None:
    value = "fp8_per_channel" if name == "quantization" else 1
    check_options(EngineSection(options={name: value}), student, "bfloat16")


@needs_vllm
@pytest.mark.parametrize(
    ("section", "dtype", "problem"),
    [
        ({"options": {"dtype": "bfloat16"}}, "float32", "engine.options.dtype: is not free; set student.dtype"),
        ({"options": {"max_num_seqs": 1}}, "float32", "set engine.max_concurrent"),
        ({"options": {"enable_lora": True}}, "float32", "set learner.lora and weights.lora"),
        ({"options": {"spec_model": "x"}}, "float32", "would not follow the student's"),
        ({"options": {"tensor_parallel_size": 2}}, "float32", "set engine.replicas"),
        ({"options": {"quantisation": "fp8"}}, "bfloat16", "no engine argument .* did you mean 'quantization'?"),
        ({"options": {"zzzzzz": 1}}, "bfloat16", "no engine argument .* see vLLM's engine arguments"),
        ({"options": {"quantization": "fp8"}}, "bfloat16", "quantization fp8: is not known to work .* fp8_per_channel"),
        ({"options": {"quantization": "fp8_per_channel"}}, "float32", "set student.dtype to bfloat16"),
        ({"use": "torch", "options": {"block_size": 1}}, "float32", "engine.use is torch"),
        (
            {"use": "vllm_server", "urls": ["http://a"], "options": {"block_size": 1}},
            "float32",
            "start those at engine.urls",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(
    student: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], dtype: Dtype, problem: str
) -> None:
    monkeypatch.setattr(options, "is_cpu_build", lambda: True)
    with pytest.raises(UserError, match=problem):
        check_options(EngineSection(**section), student, dtype)


def test_parallel_workers_and_other_quantisations_are_for_gpus(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "is_cpu_build", lambda: False)
    section = EngineSection(options={"tensor_parallel_size": 2, "quantization": "fp8"})
    check_options(section, student, "bfloat16")


def test_a_student_whose_weights_are_quantised_already_is_refused(student: Path) -> None:
    (student / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(UserError, match=re.escape("its weights are awq, which no optimizer can move")):
        check_options(EngineSection(), student, "bfloat16")
