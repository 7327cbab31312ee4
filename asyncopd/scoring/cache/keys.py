"""Content-addressed keys: equal keys mean that the teacher would answer the same."""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np

from asyncopd.records import ScoreRequest, SupportKind

_DIGEST_BYTES = 16
_PERSON = b"asyncopd.scores1"


def score_key(namespace: str, identity: str, request: ScoreRequest) -> bytes:
    """Return `namespace:scores:` and 32 hexadecimal digits, a blake2b hash of all an answer depends on.

    The width of `teacher_topk` is not part of it: a stored wider answer serves a narrower request.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES, person=_PERSON)
    kind = request.support.kind
    width = 0 if kind is SupportKind.TEACHER_TOPK else request.support.width
    _add(digest, identity.encode())
    _add(digest, kind.encode())
    digest.update(struct.pack("<dI", request.temperature, width))
    for array in (request.context_ids_C, request.scored_ids_R, request.row_map_R, request.candidate_ids_RK):
        _add(digest, b"" if array is None else np.ascontiguousarray(array, dtype="<i4").tobytes())
    return f"{namespace}:scores:{digest.hexdigest()}".encode()


def _add(digest: blake2b, field: bytes) -> None:
    """Hash a field behind its length, so that no two sequences of fields read alike."""
    digest.update(len(field).to_bytes(8, "little"))
    digest.update(field)
