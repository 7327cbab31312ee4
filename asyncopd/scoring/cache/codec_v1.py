"""Reads version 1 of a stored answer, which nothing writes any more.

Header (24 bytes): magic, version, kind, bytes of an id, padding, rows R, entries a row K, checksum. Then ids as
uint16 or uint32, then log-probs as float32, both row by row and little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from asyncopd.records import Scores, Support, SupportKind
from asyncopd.scoring.cache.errors import CorruptScores

VERSION = 1
_HEAD = struct.Struct("<4sBBBxII")
_CHECKSUM = struct.Struct("<Q")
_BODY = _HEAD.size + _CHECKSUM.size
_ID_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_LOGP_DTYPE: np.dtype[Any] = np.dtype("<f4")


def decode_scores(data: bytes, kinds: Sequence[SupportKind]) -> Scores:
    """Return the scores held in `data`. Raises `CorruptScores` for what version 1 did not write."""
    if len(data) < _BODY:
        raise CorruptScores(f"a stored value of {len(data)} bytes is shorter than its header of {_BODY}")
    head, body = data[: _HEAD.size], data[_BODY:]
    _, _, kind, id_bytes, rows, width = _HEAD.unpack(head)
    if _CHECKSUM.unpack_from(data, _HEAD.size)[0] != checksum(head, body):
        raise CorruptScores("a stored value does not match its checksum")
    if kind >= len(kinds) or id_bytes not in _ID_DTYPES or width == 0:
        raise CorruptScores(f"a stored value has kind {kind}, {id_bytes}-byte ids and width {width}")
    cells = rows * width
    if len(body) != cells * (id_bytes + _LOGP_DTYPE.itemsize):
        raise CorruptScores(f"a stored value of {rows} rows of {width} entries has a body of {len(body)} bytes")
    ids = np.frombuffer(body, _ID_DTYPES[id_bytes], cells)
    logp = np.frombuffer(body, _LOGP_DTYPE, cells, offset=cells * id_bytes)
    return Scores(
        support=Support(kind=kinds[kind], width=width),
        ids_RK=ids.astype(np.int32).reshape(rows, width),
        logp_RK=logp.astype(np.float32).reshape(rows, width),
    )


def checksum(head: bytes, body: bytes | memoryview) -> int:
    """Return what every version keeps behind its header: xxh3-64 of header and body."""
    digest = xxhash.xxh3_64(head)
    digest.update(body)
    return digest.intdigest()
