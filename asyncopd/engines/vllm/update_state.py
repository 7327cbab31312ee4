"""Where a vLLM worker stands in a weight update, as it tells whoever drives the update."""

from __future__ import annotations

import msgspec

from asyncopd.records import Version


class UpdateState(msgspec.Struct, frozen=True, kw_only=True):
    """`asked` is the version the worker was last told to prepare: it is `ready` to load it, or cannot by `error`.

    `loaded` is the version last loaded, None as long as it is that of the start; `checksum` is xxh3-64 of all its
    tensors in serving dtype. A model that is not `whole` holds tensors of several versions.
    """

    asked: Version | None
    ready: bool
    error: str | None
    loaded: Version | None
    checksum: int | None
    whole: bool
