"""A tokenizer that speaks ids its model does not know is refused before an engine meets one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_models import VOCABULARY, make_model, save_checkpoint
from transformers import AutoTokenizer

from asyncopd.errors import UserError
from asyncopd.runtime.prepare import check_tokenizer


def test_ids_beyond_the_weights_are_refused_by_name(tmp_path: Path) -> None:
    save_checkpoint(make_model(0, tied=True), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    check_tokenizer("student", tokenizer, tmp_path)
    tokenizer.add_tokens(["<extra>"])
    with pytest.raises(UserError, match=rf"student\.model: its tokenizer has the id {VOCABULARY} \('<extra>'\)"):
        check_tokenizer("student", tokenizer, tmp_path)
