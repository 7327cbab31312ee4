"""Records travel as bytes and come back equal; versions order and pack."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.records import Draws, LossMask, Scores, Segment, Support, SupportKind, Version, decode, encode, tail_of
from asyncopd.records.version import steps_of

versions = st.builds(Version, st.integers(0, 2**20), st.integers(0, 2**40 - 1))


@given(versions, versions)
def test_packed_versions_round_trip_and_order_as_versions_do(a, b):
    assert Version.unpack(a.pack()) == a
    assert (a.pack() < b.pack()) == (a < b)
    assert Version.parse(str(a)) == a


@given(st.lists(versions, min_size=1))
def test_steps_are_read_from_packed_arrays(some):
    packed = np.array([version.pack() for version in some], dtype=np.int64)
    assert steps_of(packed).tolist() == [version.step for version in some]


def _segment(length: int = 6) -> Segment:
    return Segment(
        ids_T=np.arange(length, dtype=np.int32),
        loss_mask_T=np.array([0, 0, 1, 1, 0, 3][:length], dtype=np.uint8),
        logp_T=np.linspace(-1, 0, length, dtype=np.float32),
        version_T=np.full(length, -1, dtype=np.int64),
        mixed_kv_T=np.zeros(length, dtype=np.uint8),
        turn_T=np.zeros(length, dtype=np.int16),
        draws=Draws(head_ids_RK=np.ones((2, 3), dtype=np.int32)),
    )


def test_arrays_keep_dtype_shape_and_bits():
    segment = _segment()
    again = decode(encode(segment), Segment)
    for name in ("ids_T", "loss_mask_T", "logp_T", "version_T", "mixed_kv_T", "turn_T"):
        before, after = getattr(segment, name), getattr(again, name)
        assert before.dtype == after.dtype
        assert before.tobytes() == after.tobytes()
    assert again.draws.head_ids_RK.shape == (2, 3)


def test_the_mask_separates_generated_from_trained():
    segment = _segment()
    assert segment.generated_rows.tolist() == [2, 3, 5]
    assert segment.trained_rows.tolist() == [2, 3]
    assert LossMask(3).reason == "overdue"


def test_arrays_of_unequal_length_are_refused():
    with pytest.raises(AssertionError, match="differ in length"):
        msgspec.structs.replace(_segment(), ids_T=np.arange(3, dtype=np.int32))


def test_object_arrays_never_cross():
    scores = Scores(
        support=Support(kind=SupportKind.SAMPLED),
        ids_RK=np.array([[object()]]),
        logp_RK=np.zeros((1, 1), dtype=np.float32),
    )
    with pytest.raises((ValueError, TypeError)):
        decode(encode(scores), Scores)


def test_a_wider_support_answers_a_narrower_request():
    wide = Support(kind=SupportKind.TEACHER_TOPK, width=4)
    narrow = Support(kind=SupportKind.TEACHER_TOPK, width=2)
    scores = Scores(support=wide, ids_RK=np.arange(8).reshape(2, 4), logp_RK=-np.arange(8.0).reshape(2, 4))
    assert wide.contains(narrow)
    assert not narrow.contains(wide)
    assert scores.narrowed(narrow).ids_RK.tolist() == [[0, 1], [4, 5]]


def test_what_a_narrower_support_leaves_out_goes_to_the_tail():
    probabilities_RV = np.array([[0.5, 0.2, 0.15, 0.1, 0.05], [0.9, 0.1, 0, 0, 0]])
    with np.errstate(divide="ignore"):
        logp_RV = np.log(probabilities_RV).astype(np.float32)
    wide = Scores(
        support=Support(kind=SupportKind.TEACHER_TOPK, width=4),
        ids_RK=np.tile(np.arange(4, dtype=np.int32), (2, 1)),
        logp_RK=logp_RV[:, :4],
        tail_R=tail_of(logp_RV[:, :4]),
    )
    narrow = wide.narrowed(Support(kind=SupportKind.TEACHER_TOPK, width=2))
    np.testing.assert_allclose(np.exp(wide.tail_R), [0.05, 0], atol=1e-6)
    np.testing.assert_allclose(np.exp(narrow.tail_R), [0.3, 0], atol=1e-6)
