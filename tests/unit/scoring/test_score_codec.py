"""Stored values come back within the stated error, once and for all, or are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from asyncopd.records import ScoreRequest, Scores, Support, SupportKind
from asyncopd.scoring.cache.codec import decode_scores, encode_scores
from asyncopd.scoring.cache.errors import CorruptScores
from asyncopd.scoring.cache.packing import STEP_8, STEP_16

# Written by versions 1 and 2. They must be read for as long as there are stores.
VERSION_1 = bytes.fromhex(
    "414f53430100020002000000030000003f0fe33b7c0e022f0100ffff07000200"
    "00000400cdccccbd000080bf0000e0400000000000000080000000c0"
)
VERSION_2 = bytes.fromhex(
    "414f5343020002110200000003000000000000000200000001000000c07e1906"
    "6afab1f3017007020004001100000000400002000400240000ffffffff00102f"
    "c4000048c4000effff000080ff"
)
VERSION_2_EIGHT_BITS = bytes.fromhex(
    "414f534302000311020000000300000005000000020000000100000041ae5c27"
    "e3f82be901700702000400110000000040ff40ffffffff400080040000ffffff"
    "ff00102fc4000048c4000effff000080ff"
)


def request_for(scores: Scores) -> ScoreRequest:
    """Return the request that `scores` answer."""
    rows = len(scores.ids_RK)
    chosen = scores.support.kind in (SupportKind.STUDENT_TOPK, SupportKind.DRAWS)
    return ScoreRequest(
        context_ids_C=np.arange(rows + 1, dtype=np.int32),
        scored_ids_R=scores.ids_RK[:, 0],
        row_map_R=np.arange(1, rows + 1, dtype=np.int32),
        support=scores.support,
        candidate_ids_RK=scores.ids_RK if chosen else None,
    )


@st.composite
def any_scores(draw: st.DrawFn) -> Scores:
    kind = draw(st.sampled_from([kind for kind in SupportKind if kind is not SupportKind.HIDDEN]))
    shape = draw(st.tuples(st.integers(0, 6), st.just(1) if kind is SupportKind.SAMPLED else st.integers(1, 5)))
    greatest = draw(st.sampled_from([1, 100, 2**16 - 1, 2**16, 152_000, 2**31 - 1]))
    logp_RK = draw(arrays.arrays(np.float32, shape, elements=st.floats(-63, 0, width=32)))
    tail = st.one_of(st.floats(-63, 0, width=32), st.just(-np.inf))
    return Scores(
        support=Support(kind=kind, width=shape[1]),
        ids_RK=draw(arrays.arrays(np.int32, shape, elements=st.integers(0, greatest))),
        logp_RK=-np.sort(-logp_RK, axis=1) if kind is SupportKind.TEACHER_TOPK else logp_RK,
        tail_R=draw(st.none() | arrays.arrays(np.float32, shape[0], elements=tail)),
    )


@given(any_scores(), st.sampled_from([8, 16]))
def test_decoding_inverts_encoding_within_the_stated_error(original: Scores, bits: int) -> None:
    back = decode_scores(encode_scores(original, bits), request_for(original))
    assert back.support == original.support
    assert back.ids_RK.dtype == np.int32 and np.array_equal(back.ids_RK, original.ids_RK)
    assert back.logp_RK.dtype == np.float32 and back.logp_RK.shape == original.logp_RK.shape
    step = STEP_8 if bits == 8 and original.support.kind is SupportKind.TEACHER_TOPK else STEP_16
    assert np.abs(back.logp_RK - original.logp_RK).max(initial=0) <= step / 2
    assert (back.tail_R is None) == (original.tail_R is None)
    if original.tail_R is not None:
        np.testing.assert_allclose(back.tail_R, original.tail_R, rtol=0, atol=STEP_16 / 2)


@given(any_scores(), st.sampled_from([8, 16]))
def test_what_was_decoded_is_encoded_without_another_loss(original: Scores, bits: int) -> None:
    request = request_for(original)
    once = decode_scores(encode_scores(original, bits), request)
    twice = decode_scores(encode_scores(once, bits), request)
    assert twice.logp_RK.tobytes() == once.logp_RK.tobytes()


@given(any_scores(), st.sampled_from([8, 16]), st.data())
def test_any_altered_byte_is_noticed(original: Scores, bits: int, data: st.DataObject) -> None:
    value = bytearray(encode_scores(original, bits))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptScores):
        decode_scores(bytes(value), request_for(original))


@given(any_scores(), st.sampled_from([8, 16]), st.data())
def test_any_truncation_is_noticed(original: Scores, bits: int, data: st.DataObject) -> None:
    value, request = encode_scores(original, bits), request_for(original)
    with pytest.raises(CorruptScores):
        decode_scores(value[: data.draw(st.integers(0, len(value) - 1))], request)
    with pytest.raises(CorruptScores):
        decode_scores(value + b"\0", request)


@given(st.binary(max_size=200))
def test_garbage_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptScores):
        decode_scores(value, request_for(decode_scores(VERSION_1, None)))


@pytest.mark.parametrize(
    ("vocabulary", "bits", "bytes_an_entry"),
    [(49_152, 16, 4.0), (49_152, 8, 3.0), (151_936, 16, 4.25), (151_936, 8, 3.25), (8_000, 16, 3.625)],
)
def test_an_entry_costs_its_id_by_vocabulary_and_its_log_prob(
    vocabulary: int, bits: int, bytes_an_entry: float
) -> None:
    random = np.random.default_rng(0)
    ids_RK = random.integers(vocabulary // 2, vocabulary, (256, 64), dtype=np.int32)
    logp_RK = np.tile(-np.linspace(0.5, 9, 64, dtype=np.float32), (256, 1))
    support = Support(kind=SupportKind.TEACHER_TOPK, width=64)
    value = encode_scores(Scores(support=support, ids_RK=ids_RK, logp_RK=logp_RK), bits)
    header_and_first_of_a_row = 40 + (512 if bits == 8 else 0)
    assert len(value) <= 256 * 64 * bytes_an_entry + header_and_first_of_a_row


@pytest.mark.parametrize("kind", [SupportKind.STUDENT_TOPK, SupportKind.DRAWS])
def test_ids_that_were_asked_about_are_not_stored_and_must_be_the_same(kind: SupportKind) -> None:
    scores = Scores(
        support=Support(kind=kind, width=4),
        ids_RK=np.arange(40, dtype=np.int32).reshape(10, 4),
        logp_RK=np.full((10, 4), -1, np.float32),
    )
    value = encode_scores(scores)
    assert len(value) == 36 + 10 * 4 * 2
    other = msgspec.structs.replace(request_for(scores), candidate_ids_RK=scores.ids_RK[:, :3])
    with pytest.raises(CorruptScores, match=r"10 rows of 4 ids; the ids asked about are \(10, 3\)"):
        decode_scores(value, other)


def test_version_1_stays_readable() -> None:
    back = decode_scores(VERSION_1, None)
    assert back.support == Support(kind=SupportKind.TEACHER_TOPK, width=3)
    assert back.ids_RK.tolist() == [[1, 65535, 7], [2, 0, 4]]
    assert back.logp_RK.tobytes() == np.array([[-0.1, -1, 7], [0, -0.0, -2]], np.float32).tobytes()


@pytest.mark.parametrize("value", [VERSION_2, VERSION_2_EIGHT_BITS])
def test_version_2_stays_readable(value: bytes) -> None:
    back = decode_scores(value, None)
    assert back.support == Support(kind=SupportKind.TEACHER_TOPK, width=3)
    assert back.ids_RK.tolist() == [[1, 70000, 7], [2, 0, 4]]
    assert back.logp_RK.tolist() == [[-0.5, -1, -9], [0, -700.25, -800]]
    assert back.tail_R.tolist() == [-3.5, -np.inf]


def test_a_later_version_is_refused_by_name() -> None:
    value = bytearray(VERSION_2)
    value[4] = 9
    with pytest.raises(CorruptScores, match="format version 9"):
        decode_scores(bytes(value), None)
