"""Loading a model and its tokenizer from a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from asyncopd.errors import UserError

# Progress on a terminal is the run's to show, not the library's.
disable_progress_bar()

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_causal_lm(directory: Path, dtype: Literal["float32", "bfloat16"]) -> PreTrainedModel:
    """Return the causal language model in `directory`, in evaluation mode, with weights of `dtype`.

    Raises `UserError` where the directory holds no such model.
    """
    if not (directory / "config.json").is_file():
        raise UserError(str(directory), "holds no model (no config.json)", "give a Hugging Face model directory")
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[dtype], local_files_only=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(str(directory), f"cannot be loaded ({reason})", "give a causal language model") from error
    return model.eval()


def load_tokenizer(directory: Path, chat_template: Path | None) -> PreTrainedTokenizerBase:
    """Return the tokenizer in `directory`; the Jinja file `chat_template`, if given, replaces its template.

    Raises `UserError` where there is no tokenizer, no chat template at all, or no such file.
    """
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UserError(str(directory), "holds no tokenizer", "put tokenizer.json beside the model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(str(directory), f"its tokenizer cannot be loaded ({reason})", "repair the files") from error
    if chat_template is not None:
        try:
            tokenizer.chat_template = chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError("chat_template", f"cannot read {chat_template} ({error})", "give a Jinja file") from None
    if not tokenizer.chat_template:
        raise UserError(str(directory), "its tokenizer has no chat template", "set chat_template to a Jinja file")
    return tokenizer
