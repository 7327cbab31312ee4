"""Equal keys mean equal answers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.records import ScoreRequest, Support, SupportKind
from asyncopd.scoring.cache.keys import score_key

BASE = ScoreRequest(
    context_ids_C=np.array([1, 2, 3, 4], np.int32),
    scored_ids_R=np.array([3, 4], np.int32),
    row_map_R=np.array([2, 3], np.int32),
    support=Support(kind=SupportKind.STUDENT_TOPK, width=2),
    candidate_ids_RK=np.array([[5, 6], [7, 8]], np.int32),
    temperature=1.0,
)
KEY = score_key("asyncopd", "teacher", BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"context_ids_C": np.array([1, 2, 3, 5], np.int32)},
        {"scored_ids_R": np.array([3, 5], np.int32)},
        {"row_map_R": np.array([1, 3], np.int32)},
        {"support": Support(kind=SupportKind.DRAWS, width=2)},
        {"support": Support(kind=SupportKind.STUDENT_TOPK, width=3)},
        {"candidate_ids_RK": np.array([[5, 6], [8, 7]], np.int32)},
        {"candidate_ids_RK": None},
        {"temperature": 1.0000001},
        # The same numbers, cut elsewhere.
        {"context_ids_C": np.array([1, 2, 3], np.int32), "scored_ids_R": np.array([4, 3, 4], np.int32)},
    ],
)
def test_every_field_changes_the_key(change: dict[str, object]) -> None:
    assert score_key("asyncopd", "teacher", msgspec.structs.replace(BASE, **change)) != KEY


def test_teachers_and_namespaces_share_no_key() -> None:
    assert score_key("asyncopd", "teacher2", BASE) != KEY
    assert score_key("other", "teacher", BASE).removeprefix(b"other:") == KEY.removeprefix(b"asyncopd:")


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_wider_teacher_topk_lies_under_the_same_key(one: int, other: int) -> None:
    keys = {
        score_key("a", "t", msgspec.structs.replace(BASE, support=Support(kind=SupportKind.TEACHER_TOPK, width=width)))
        for width in (one, other)
    }
    assert len(keys) == 1


@given(st.sampled_from([np.int16, np.int64, ">i4", np.uint32]), st.booleans())
def test_the_key_depends_on_numbers_not_on_their_layout(dtype: object, strided: bool) -> None:
    ids_C = np.repeat(BASE.context_ids_C, 2).astype(dtype)[::2] if strided else BASE.context_ids_C.astype(dtype)
    assert score_key("asyncopd", "teacher", msgspec.structs.replace(BASE, context_ids_C=ids_C)) == KEY


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5))
def test_different_contexts_get_different_keys(one: list[int], other: list[int]) -> None:
    keys = [
        score_key("a", "t", msgspec.structs.replace(BASE, context_ids_C=np.array(ids, np.int32)))
        for ids in (one, other)
    ]
    assert (keys[0] == keys[1]) == (one == other)


def test_the_key_is_stable_across_releases() -> None:
    assert KEY == b"asyncopd:scores:278c67ad35d8b035dfd18e53a41b48b7"
