"""Stored values come back bit for bit, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from asyncopd.records import Scores, Support, SupportKind
from asyncopd.scoring.cache.codec import decode_scores, encode_scores
from asyncopd.scoring.cache.errors import CorruptScores

# Written by version 1. It must be read for as long as there are stores.
VERSION_1 = bytes.fromhex(
    "414f53430100020002000000030000003f0fe33b7c0e022f0100ffff07000200"
    "00000400cdccccbd000080bf0000e0400000000000000080000000c0"
)


@st.composite
def scores(draw: st.DrawFn) -> Scores:
    kind = draw(st.sampled_from([kind for kind in SupportKind if kind is not SupportKind.HIDDEN]))
    shape = draw(st.tuples(st.integers(0, 6), st.just(1) if kind is SupportKind.SAMPLED else st.integers(1, 5)))
    greatest = draw(st.sampled_from([100, 2**16 - 1, 2**16, 2**31 - 1]))
    return Scores(
        support=Support(kind=kind, width=shape[1]),
        ids_RK=draw(arrays.arrays(np.int32, shape, elements=st.integers(0, greatest))),
        logp_RK=draw(arrays.arrays(np.float32, shape, elements=st.floats(width=32, allow_nan=False, max_value=0))),
    )


@given(scores())
def test_decoding_inverts_encoding_bit_for_bit(original: Scores) -> None:
    back = decode_scores(encode_scores(original))
    assert back.support == original.support
    assert back.ids_RK.dtype == np.int32 and np.array_equal(back.ids_RK, original.ids_RK)
    assert back.logp_RK.dtype == np.float32 and back.logp_RK.tobytes() == original.logp_RK.tobytes()


@given(scores(), st.data())
def test_any_altered_byte_is_noticed(original: Scores, data: st.DataObject) -> None:
    value = bytearray(encode_scores(original))
    # The padding byte of the header too: it is part of the checksum.
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptScores):
        decode_scores(bytes(value))


@given(scores(), st.data())
def test_any_truncation_is_noticed(original: Scores, data: st.DataObject) -> None:
    value = encode_scores(original)
    with pytest.raises(CorruptScores):
        decode_scores(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(CorruptScores):
        decode_scores(value + b"\0")


@given(st.binary(max_size=200))
def test_garbage_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptScores):
        decode_scores(value)


@pytest.mark.parametrize(("greatest", "size"), [(2**16 - 1, 6), (2**16, 8)])
def test_an_entry_costs_its_id_by_vocabulary_and_four_bytes(greatest: int, size: int) -> None:
    ids_RK = np.full((10, 64), greatest, np.int32)
    support = Support(kind=SupportKind.TEACHER_TOPK, width=64)
    value = encode_scores(Scores(support=support, ids_RK=ids_RK, logp_RK=np.zeros((10, 64), np.float32)))
    assert len(value) == 24 + 640 * size


def test_version_1_stays_readable() -> None:
    back = decode_scores(VERSION_1)
    assert back.support == Support(kind=SupportKind.TEACHER_TOPK, width=3)
    assert back.ids_RK.tolist() == [[1, 65535, 7], [2, 0, 4]]
    assert back.logp_RK.tobytes() == np.array([[-0.1, -1, 7], [0, -0.0, -2]], np.float32).tobytes()


def test_a_later_version_is_refused_by_name() -> None:
    value = bytearray(VERSION_1)
    value[4] = 9
    with pytest.raises(CorruptScores, match="format version 9"):
        decode_scores(bytes(value))
