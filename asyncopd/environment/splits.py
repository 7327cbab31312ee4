"""Disjoint splits without a list to keep: a task's own id says where it belongs."""

from __future__ import annotations

import hashlib
from typing import Literal

Split = Literal["train", "test"]


def in_split(key: str, split: Split, *, held_out: int = 8) -> bool:
    """Return whether the task of this id or text is of `split`; one in `held_out` is of `test`.

    Raises `ValueError` for another split.
    """
    if split not in ("train", "test"):
        raise ValueError(f"there is no split {split!r}; there are train and test")
    of_test = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % held_out == 0
    return of_test == (split == "test")
