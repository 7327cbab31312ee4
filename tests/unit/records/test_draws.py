"""Draws: split by kind, joined over generations, chosen for a segment's trained rows."""

from __future__ import annotations

import numpy as np
import pytest

from asyncopd.records import Draws, DrawSpec, LossMask, Segment, SupportKind, Version

SPEC = DrawSpec(head=2, tail=1, iid=3)


def draws_of(rows: int) -> Draws:
    """Return draws whose ids count along rows, and whose log μ are their negatives."""
    ids_RN = np.arange(rows * SPEC.width, dtype=np.int32).reshape(rows, SPEC.width)
    return Draws.split(SPEC, ids_RN, -ids_RN.astype(np.float32))


def segment(draws: Draws | None) -> Segment:
    """Return a segment of three generated tokens, the second of which teaches nothing."""
    mask_T = np.array([0, LossMask.TRAIN, LossMask.INFRASTRUCTURE, 0, LossMask.TRAIN], np.uint8)
    return Segment(
        ids_T=np.arange(90, 95, dtype=np.int32),
        loss_mask_T=mask_T,
        logp_T=-np.arange(90, 95, dtype=np.float32),
        version_T=np.full(5, Version(0, 1).pack()),
        mixed_kv_T=np.zeros(5, np.uint8),
        turn_T=np.zeros(5, np.int16),
        draws=draws,
    )


@pytest.mark.parametrize("wanted", [{"head": 3}, {"tail": 2}, {"iid": 4}])
def test_a_spec_covers_what_is_no_wider_in_any_kind(wanted):
    assert SPEC.covers(SPEC) and SPEC.covers(DrawSpec(head=1))
    assert not SPEC.covers(DrawSpec(**wanted))


def test_entries_side_by_side_are_split_into_head_tail_and_iid():
    draws = draws_of(2)
    assert draws.head_ids_RK.tolist() == [[0, 1], [6, 7]]
    assert draws.tail_ids_RM.tolist() == [[2], [8]]
    assert draws.iid_logp_RM.tolist() == [[-3, -4, -5], [-9, -10, -11]]
    assert Draws.split(DrawSpec(iid=6), np.zeros((1, 6)), np.zeros((1, 6))).head_ids_RK is None


def test_joined_parts_are_the_whole():
    whole = draws_of(5)
    again = Draws.join([whole.rows(0, 2), whole.rows(2, 2), whole.rows(2, 5)])
    for field in Draws.__struct_fields__:
        np.testing.assert_array_equal(getattr(again, field), getattr(whole, field))


def test_lost_draws_have_the_shape_of_real_ones_and_no_probability():
    lost = Draws.lost(SPEC, 4)
    assert lost.iid_ids_RM.shape == lost.iid_logp_RM.shape == (4, 3)
    assert np.isneginf(lost.tail_logp_RM).all()
    assert Draws.join([lost, draws_of(1)]).head_ids_RK.shape == (5, 2)


def test_candidates_are_of_the_trained_rows_with_the_generated_token_before_the_iid_draws():
    ids_RN, logp_RN = segment(draws_of(3)).candidates(SupportKind.DRAWS)
    assert ids_RN.tolist() == [[0, 1, 2, 91, 3, 4, 5], [12, 13, 14, 94, 15, 16, 17]]
    assert (logp_RN == -ids_RN).all() and (ids_RN.dtype, logp_RN.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (SupportKind.SAMPLED, [[91], [94]]),
        (SupportKind.STUDENT_TOPK, [[0, 1], [12, 13]]),
        (SupportKind.TEACHER_TOPK, [[], []]),
    ],
)
def test_other_supports_name_the_ids_that_the_student_knows(kind, expected):
    ids_RN, logp_RN = segment(draws_of(3)).candidates(kind)
    assert ids_RN.tolist() == expected
    assert logp_RN.shape == ids_RN.shape


def test_a_segment_without_draws_has_no_candidates_but_its_own_tokens():
    assert segment(None).candidates(SupportKind.DRAWS)[0].shape == (2, 0)
    assert segment(None).candidates(SupportKind.SAMPLED)[0].tolist() == [[91], [94]]
