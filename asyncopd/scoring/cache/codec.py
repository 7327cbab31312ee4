"""The bytes of a stored answer: a versioned, checksummed header, then plain little-endian arrays.

Header (24 bytes): magic, version, kind, bytes of an id, padding, rows R, entries a row K, checksum.
Version 1: ids as uint16 where all fit, else uint32, then log-probs as float32, both row by row.
Every version ever written stays readable.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import xxhash

from asyncopd.records import Scores, Support, SupportKind
from asyncopd.scoring.cache.errors import CorruptScores

_MAGIC = b"AOSC"
_VERSION = 1
_HEAD = struct.Struct("<4sBBBxII")
_CHECKSUM = struct.Struct("<Q")
_BODY = _HEAD.size + _CHECKSUM.size
# Positions are part of the format: append only.
_KINDS = (
    SupportKind.TEACHER_TOPK,
    SupportKind.STUDENT_TOPK,
    SupportKind.DRAWS,
    SupportKind.SAMPLED,
)
_ID_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_LOGP_DTYPE: np.dtype[Any] = np.dtype("<f4")


def encode_scores(scores: Scores) -> bytes:
    """Return the stored form; `decode_scores` gives back the same ids and the same log-prob bits.

    Ids must not be negative; `ids_RK` and `logp_RK` have the support's width.
    """
    rows, width = scores.ids_RK.shape
    id_bytes = 2 if scores.ids_RK.max(initial=0) < 2**16 else 4
    head = _HEAD.pack(_MAGIC, _VERSION, _KINDS.index(scores.support.kind), id_bytes, rows, width)
    body = scores.ids_RK.astype(_ID_DTYPES[id_bytes]).tobytes() + scores.logp_RK.astype(_LOGP_DTYPE).tobytes()
    return head + _CHECKSUM.pack(_checksum(head, body)) + body


def decode_scores(data: bytes) -> Scores:
    """Return the scores held in `data`. Raises `CorruptScores` for anything `encode_scores` did not write."""
    if len(data) < _BODY:
        raise CorruptScores(f"a stored value of {len(data)} bytes is shorter than its header of {_BODY}")
    head, body = data[: _HEAD.size], data[_BODY:]
    magic, version, kind, id_bytes, rows, width = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise CorruptScores(f"a stored value begins with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise CorruptScores(f"a stored value has format version {version}; this build reads {_VERSION}")
    if _CHECKSUM.unpack_from(data, _HEAD.size)[0] != _checksum(head, body):
        raise CorruptScores("a stored value does not match its checksum")
    return _decode_v1(kind, id_bytes, rows, width, body)


def _decode_v1(kind: int, id_bytes: int, rows: int, width: int, body: bytes) -> Scores:
    if kind >= len(_KINDS) or id_bytes not in _ID_DTYPES or width == 0:
        raise CorruptScores(f"a stored value has kind {kind}, {id_bytes}-byte ids and width {width}")
    cells = rows * width
    if len(body) != cells * (id_bytes + _LOGP_DTYPE.itemsize):
        raise CorruptScores(f"a stored value of {rows} rows of {width} entries has a body of {len(body)} bytes")
    ids = np.frombuffer(body, _ID_DTYPES[id_bytes], cells)
    logp = np.frombuffer(body, _LOGP_DTYPE, cells, offset=cells * id_bytes)
    return Scores(
        support=Support(kind=_KINDS[kind], width=width),
        ids_RK=ids.astype(np.int32).reshape(rows, width),
        logp_RK=logp.astype(np.float32).reshape(rows, width),
    )


def _checksum(head: bytes, body: bytes) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(body)
    return digest.intdigest()
