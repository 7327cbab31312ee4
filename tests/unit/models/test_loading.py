"""Loading models and tokenizers, and what is said of directories that hold none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncopd.errors import UserError
from asyncopd.models.loading import load_causal_lm, load_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    config = Qwen3Config(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    words = {word: index for index, word in enumerate("abcdefgh")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="a")))
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_model_has_the_dtype_asked_for(directory, dtype, expected):
    model = load_causal_lm(directory, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {expected}
    assert not model.training


def test_a_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        load_causal_lm(tmp_path / "nowhere", "float32")


def test_a_model_without_weights_is_refused(directory):
    (directory / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        load_causal_lm(directory, "float32")


def test_a_model_that_is_no_causal_language_model_is_refused(directory):
    (directory / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(UserError, match="give a causal language model"):
        load_causal_lm(directory, "float32")


def test_a_tokenizer_keeps_its_template(directory):
    assert load_tokenizer(directory, None).chat_template == "{{ messages }}"


def test_a_template_file_replaces_the_tokenizers_own(directory, tmp_path):
    template = tmp_path / "other.jinja"
    template.write_text("{{ other }}")
    assert load_tokenizer(directory, template).chat_template == "{{ other }}"


def test_a_missing_template_file_is_named(directory, tmp_path):
    with pytest.raises(UserError, match=r"nothing\.jinja"):
        load_tokenizer(directory, tmp_path / "nothing.jinja")


def test_a_directory_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_tokenizer(tmp_path, None)


def test_a_tokenizer_without_a_template_is_refused(directory):
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(directory, None)
