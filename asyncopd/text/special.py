"""Keeps the text of special tokens, written by users and tools, from becoming special tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BREAK = "\ufdd0"
"""Unicode reserves this noncharacter for internal use: it marks where text must be cut, and is never encoded."""

_BRACKETED = re.compile(r"<.*>|\[.*\]", re.DOTALL)


class SpecialText:
    """Encodes rendered conversations.

    A token is structural if the tokenizer calls it special, or added it in brackets, as many do with
    `<tool_call>` and `<think>`; other added tokens are runs of spaces and plain words. Text that was
    disarmed has a `BREAK` inside each occurrence of a structural one, and its two sides are encoded apart,
    so that no structural id can come of it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        structural = {
            str(token)
            for token in tokenizer.added_tokens_decoder.values()
            if len(str(token)) > 1 and (token.special or _BRACKETED.fullmatch(str(token)))
        }
        alternatives = "|".join(re.escape(text) for text in sorted(structural))
        # A lookahead finds overlapping occurrences too; no alternative must never match the empty text.
        self._pattern = re.compile(f"(?=(?:{alternatives or '(?!)'}))(.)", re.DOTALL)

    def disarm(self, text: str) -> str:
        """Return `text` with each structural token's text broken, to be rendered and given to `encode`."""
        return self._pattern.sub(rf"\1{BREAK}", text.replace(BREAK, ""))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a rendered conversation, without adding special tokens of its own."""
        ids: list[int] = []
        for piece in text.split(BREAK):
            ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return ids
