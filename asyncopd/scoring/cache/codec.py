"""The bytes of a stored answer: a versioned, checksummed header, then its packed arrays.

Ids are stored where the teacher chose them; those it was asked about are in the request. Log-probs are rounded to
16 bits, or falling rows to 8 (`packing`), so whoever wants a hit and a miss to agree decodes both.
Every version ever written stays readable.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from asyncopd.records import ScoreRequest, Scores, Support, SupportKind
from asyncopd.scoring.cache import codec_v1
from asyncopd.scoring.cache.errors import CorruptScores
from asyncopd.scoring.cache.packing import (
    STEP_16,
    pack_falling,
    pack_ids,
    pack_steps,
    packed_id_bytes,
    unpack_falling,
    unpack_ids,
    unpack_steps,
)

MAGIC = b"AOSC"
VERSION = 2
_PREFIX = struct.Struct("<4sB")
# After magic and version: kind, flags, bits of an id (0: not stored), rows R, entries a row K, differences too
# great for 8 bits, log-probs beside, tails beside.
_HEAD = struct.Struct("<4sBBBBIIIII")
_CHECKSUM = struct.Struct("<Q")
_BODY = _HEAD.size + _CHECKSUM.size
_EIGHT_BITS, _TAIL = 1, 2
# Positions are part of the format: append only.
KINDS = (
    SupportKind.TEACHER_TOPK,
    SupportKind.STUDENT_TOPK,
    SupportKind.DRAWS,
    SupportKind.SAMPLED,
)


def encode_scores(scores: Scores, bits: Literal[8, 16] = 16) -> bytes:
    """Return the stored form of an answer; log-probs are at most 0, ids not negative.

    8 bits are for `teacher_topk`, whose rows fall; other kinds take 16 whatever `bits` says.
    """
    chosen = scores.support.kind is SupportKind.TEACHER_TOPK
    id_bits = max(1, int(scores.ids_RK.max(initial=0)).bit_length()) if chosen else 0
    ids = pack_ids(scores.ids_RK, id_bits) if chosen else b""
    flags, jumps = 0, b""
    if chosen and bits == 8:
        flags |= _EIGHT_BITS
        logp, jumps, beside = pack_falling(scores.logp_RK)
    else:
        logp, beside = pack_steps(scores.logp_RK.ravel(), STEP_16)
    tail, tail_beside = b"", b""
    if scores.tail_R is not None:
        flags |= _TAIL
        tail, tail_beside = pack_steps(scores.tail_R, STEP_16)
    counts = (len(jumps) // 2, len(beside) // 4, len(tail_beside) // 4)
    head = _HEAD.pack(MAGIC, VERSION, KINDS.index(scores.support.kind), flags, id_bits, *scores.ids_RK.shape, *counts)
    body = b"".join((ids, logp, jumps, beside, tail, tail_beside))
    return head + _CHECKSUM.pack(codec_v1.checksum(head, body)) + body


def decode_scores(data: bytes, request: ScoreRequest) -> Scores:
    """Return the scores held in `data`, as an answer to `request`.

    The width is the stored one, which may be another. Raises `CorruptScores` for anything `encode_scores` did not
    write, and for an answer to other ids than the request's.
    """
    if len(data) < _PREFIX.size:
        raise CorruptScores(f"a stored value of {len(data)} bytes is shorter than any header")
    magic, version = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise CorruptScores(f"a stored value begins with {magic!r}, not {MAGIC!r}")
    if version == codec_v1.VERSION:
        return codec_v1.decode_scores(data, KINDS)
    if version != VERSION:
        raise CorruptScores(f"a stored value has format version {version}; this build reads 1 to {VERSION}")
    if len(data) < _BODY:
        raise CorruptScores(f"a stored value of {len(data)} bytes is shorter than its header of {_BODY}")
    head, body = data[: _HEAD.size], memoryview(data)[_BODY:]
    if _CHECKSUM.unpack_from(data, _HEAD.size)[0] != codec_v1.checksum(head, body):
        raise CorruptScores("a stored value does not match its checksum")
    return _decode(head, body, request)


def _decode(head: bytes, body: memoryview, request: ScoreRequest) -> Scores:
    _, _, kind, flags, id_bits, rows, width, jump_count, beside_count, tail_beside_count = _HEAD.unpack(head)
    if kind >= len(KINDS) or width == 0 or id_bits > 32:
        raise CorruptScores(f"a stored value has kind {kind}, ids of {id_bits} bits and width {width}")
    cells, eight, has_tail = rows * width, bool(flags & _EIGHT_BITS), bool(flags & _TAIL)
    sizes = (
        packed_id_bytes(cells, id_bits),
        cells * (1 if eight else 2),
        2 * jump_count,
        4 * beside_count,
        2 * rows * has_tail,
        4 * tail_beside_count,
    )
    ends = list(accumulate(sizes, initial=0))
    if len(body) != ends[-1]:
        raise CorruptScores(f"a stored value of {rows} rows of {width} entries has a body of {len(body)} bytes")
    ids, logp, jumps, beside, tail, tail_beside = (body[start:end] for start, end in pairwise(ends))
    logp_N = unpack_falling(logp, jumps, beside) if eight else unpack_steps(logp, beside, STEP_16)
    return Scores(
        support=Support(kind=KINDS[kind], width=width),
        ids_RK=unpack_ids(ids, cells, id_bits).reshape(rows, width) if id_bits else _asked(request, rows, width),
        logp_RK=logp_N.reshape(rows, width),
        tail_R=unpack_steps(tail, tail_beside, STEP_16) if has_tail else None,
    )


def _asked(request: ScoreRequest, rows: int, width: int) -> np.ndarray:
    ids_RK = request.asked_ids_RK
    if ids_RK is None or ids_RK.shape != (rows, width):
        asked = "none" if ids_RK is None else ids_RK.shape
        raise CorruptScores(f"a stored value answers for {rows} rows of {width} ids; the ids asked about are {asked}")
    return ids_RK.astype(np.int32)
