"""Texts survive the tokenizer, and the template renders what a model would have said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from asyncopd_envs.calculator.env import Calculator
from asyncopd_envs.calculator.tokenizer import UNKNOWN, build

CALL = '<tool_call>{"name": "calc", "arguments": {"expression": "12+3"}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build()


def called(arguments: Any) -> dict[str, Any]:
    function = {"name": "calc", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def test_every_text_of_a_task_survives(tokenizer: PreTrainedTokenizerFast) -> None:
    for task in Calculator.tasks("train", train_tasks=2000) + Calculator.tasks("test"):
        calls = [json.dumps({"name": call["name"], "arguments": call["arguments"]}) for call in task.data["calls"]]
        results = [call["result"] for call in task.data["calls"]]
        for text in (task.data["question"], *calls, *results):
            ids = tokenizer.encode(text)
            assert tokenizer.unk_token_id not in ids, text
            assert tokenizer.decode(ids) == text


def test_a_call_is_short_and_the_vocabulary_small(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) < 256
    assert len(tokenizer.encode(CALL)) == len(("<tool_call>", "calc…", *"12+3", '"}}', "</tool_call>"))


def test_unknown_words_become_the_unknown_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode(tokenizer.encode("What is zymurgy?")) == f"What is{UNKNOWN}?"


def test_special_tokens_are_dropped_from_text_but_calls_are_not(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode(tokenizer.encode(f"{CALL}<|end|>"), skip_special_tokens=True) == CALL


@pytest.mark.parametrize("arguments", [{"expression": "12+3"}, '{"expression": "12+3"}'])
def test_a_call_is_rendered_as_it_is_sampled(tokenizer: PreTrainedTokenizerFast, arguments: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Compute 12+3."}, called(arguments)], tokenize=False
    )
    assert text == f"<|user|>Compute 12+3.<|end|><|assistant|>{CALL}<|end|>"


def test_more_turns_only_append(tokenizer: PreTrainedTokenizerFast) -> None:
    conversation = [
        {"role": "system", "content": "Compute."},
        {"role": "user", "content": "Compute 12+3."},
        called({"expression": "12+3"}),
        {"role": "tool", "content": "15"},
        {"role": "assistant", "content": "15"},
    ]
    rendered = ""
    for end in range(1, len(conversation) + 1):
        longer = tokenizer.apply_chat_template(conversation[:end], tokenize=False)
        assert longer.startswith(rendered)
        rendered = longer
        opened = tokenizer.apply_chat_template(conversation[:end], tokenize=False, add_generation_prompt=True)
        assert opened == rendered + "<|assistant|>"


def test_tools_are_built_in_and_not_rendered(tokenizer: PreTrainedTokenizerFast) -> None:
    tools = [tool.spec.for_template() for tool in Calculator().tools.values()]
    conversation = [{"role": "user", "content": "Compute 1+1."}]
    with_tools = tokenizer.apply_chat_template(conversation, tools=tools, tokenize=False)
    assert with_tools == tokenizer.apply_chat_template(conversation, tokenize=False)
