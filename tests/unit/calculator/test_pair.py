"""The shipped teacher and student are small, load, and speak the same tokens."""

from __future__ import annotations

import json

import pytest

from asyncopd.models.loading import load_causal_lm, load_tokenizer
from asyncopd.models.resolve import resolve
from asyncopd_envs.calculator.tokenizer import build

NAMES = {name: f"package:asyncopd_envs.calculator/pair/{name}" for name in ("teacher", "student")}


def test_the_pair_is_small() -> None:
    root = resolve(NAMES["teacher"]).parent
    assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) <= 5 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_with_the_tokenizer_that_is_built_today(name: str) -> None:
    directory = resolve(NAMES[name])
    shipped, built = load_tokenizer(directory, None), build()
    assert shipped.get_vocab() == built.get_vocab()
    assert shipped.chat_template == built.chat_template
    text = '<|user|>What does a lamp cost?<|end|><|assistant|><tool_call>{"name": "price", "arguments": {"item": "'
    assert shipped.encode(text) == built.encode(text)
    model = load_causal_lm(directory, "float32")
    assert model.config.vocab_size == len(built)
    assert model.config.eos_token_id == built.eos_token_id


def test_the_teacher_is_the_larger() -> None:
    sizes = {name: json.loads((resolve(NAMES[name]) / "config.json").read_text())["hidden_size"] for name in NAMES}
    assert sizes["teacher"] > sizes["student"]
