"""Answers that cannot be right are refused; rounding is not an error."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from asyncopd.records import ScoreRequest, Scores, Support, SupportKind
from asyncopd.scoring.validation import InvalidScores, validated

IDS = [1, 2, 3, 4, 5]


def altered(array: np.ndarray, place: tuple[int, int], value: float) -> np.ndarray:
    copy = array.copy()
    copy[place] = value
    return copy


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda s: {"logp_RK": altered(s.logp_RK, (1, 3), np.nan)}, "1 log-probs are not finite"),
        (lambda s: {"logp_RK": altered(s.logp_RK, (1, 3), -np.inf)}, "not finite"),
        (lambda s: {"logp_RK": altered(s.logp_RK, (0, 0), 0.01)}, "above 0"),
        (lambda s: {"logp_RK": s.logp_RK[:, ::-1]}, "does not fall"),
        (lambda s: {"logp_RK": np.full_like(s.logp_RK, -1.0)}, "sum to 1.47"),
        (lambda s: {"logp_RK": s.logp_RK[:2]}, "are not"),
        (lambda s: {"ids_RK": s.ids_RK[:, :2], "logp_RK": s.logp_RK[:, :2]}, "are not"),
        (lambda s: {"ids_RK": altered(s.ids_RK, (2, 2), -1)}, "an id is -1"),
        (lambda s: {"support": Support(kind=SupportKind.TEACHER_TOPK, width=3)}, "asked was"),
    ],
)
def test_impossible_answers_are_refused(
    spoil: Callable[[Scores], dict[str, object]],
    reason: str,
    request_of: Callable[..., ScoreRequest],
    answer_of: Callable[[ScoreRequest], Scores],
) -> None:
    request = request_of(IDS)
    good = answer_of(request)
    validated(good, request)
    with pytest.raises(InvalidScores, match=reason):
        validated(msgspec.structs.replace(good, **spoil(good)), request)


def test_answers_must_be_about_the_ids_asked_for(request_of: Callable[..., ScoreRequest]) -> None:
    support = Support(kind=SupportKind.SAMPLED)
    request = request_of(IDS, support)
    logp_RK = np.full((3, 1), -0.5, np.float32)
    validated(Scores(support=support, ids_RK=request.scored_ids_R[:, None], logp_RK=logp_RK), request)
    with pytest.raises(InvalidScores, match="other ids"):
        validated(Scores(support=support, ids_RK=request.scored_ids_R[::-1, None], logp_RK=logp_RK), request)


def test_rounding_above_zero_is_cut(request_of: Callable[..., ScoreRequest]) -> None:
    support = Support(kind=SupportKind.SAMPLED)
    request = request_of(IDS, support)
    scores = Scores(
        support=support, ids_RK=request.scored_ids_R[:, None], logp_RK=np.array([[2e-6], [0], [-1]], np.float32)
    )
    assert validated(scores, request).logp_RK.tolist() == [[0], [0], [-1]]
