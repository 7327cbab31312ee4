"""What a teacher's answer must satisfy before anything is learned from it."""

from __future__ import annotations

import msgspec
import numpy as np

from asyncopd.records import ScoreRequest, Scores, SupportKind

# Rounding of a log-softmax in float32 stays below; remote servers round to four digits and more.
_ROUNDING_NATS = 1e-4
_ROUNDING_MASS = 1e-3


class InvalidScores(ValueError):
    """A teacher's answer cannot be right; the message says where."""


def validated(scores: Scores, request: ScoreRequest) -> Scores:
    """Return `scores` with log-probs capped at 0. Raises `InvalidScores`.

    Checked: the support, the shapes, ids that were asked for, finite log-probs at most 0 up to rounding,
    for `teacher_topk` rows that fall and sum to at most 1, and tails that are the log of a mass.
    """
    shape = (len(request.scored_ids_R), request.support.width)
    if scores.support != request.support:
        raise InvalidScores(f"the answer is for {scores.support}, asked was {request.support}")
    if scores.ids_RK.shape != shape or scores.logp_RK.shape != shape:
        raise InvalidScores(f"ids {scores.ids_RK.shape} and log-probs {scores.logp_RK.shape} are not {shape}")
    asked_RK = request.asked_ids_RK
    if asked_RK is not None and not np.array_equal(scores.ids_RK, asked_RK):
        raise InvalidScores("the answer is about other ids than those asked for")
    if scores.ids_RK.min(initial=0) < 0:
        raise InvalidScores(f"an id is {scores.ids_RK.min()}")
    if not np.isfinite(scores.logp_RK).all():
        raise InvalidScores(f"{int((~np.isfinite(scores.logp_RK)).sum())} log-probs are not finite")
    if scores.logp_RK.max(initial=0) > _ROUNDING_NATS:
        raise InvalidScores(f"a log-prob is {scores.logp_RK.max()}, above 0")
    if scores.tail_R is not None:
        _check_tail(scores.tail_R, shape[0])
    if request.support.kind is SupportKind.TEACHER_TOPK:
        _check_topk(scores.logp_RK)
    tail_R = None if scores.tail_R is None else np.minimum(scores.tail_R, np.float32(0))
    return msgspec.structs.replace(scores, logp_RK=np.minimum(scores.logp_RK, np.float32(0)), tail_R=tail_R)


def _check_topk(logp_RK: np.ndarray) -> None:
    if (np.diff(logp_RK, axis=1) > 0).any():
        raise InvalidScores("a row of teacher_topk does not fall")
    mass = np.exp(logp_RK, dtype=np.float64).sum(axis=1).max(initial=0)
    if mass > 1 + _ROUNDING_MASS:
        raise InvalidScores(f"the probabilities of a row sum to {mass}")


def _check_tail(tail_R: np.ndarray, rows: int) -> None:
    if tail_R.shape != (rows,):
        raise InvalidScores(f"tails {tail_R.shape} are not {(rows,)}")
    if np.isnan(tail_R).any() or tail_R.max(initial=0) > _ROUNDING_NATS:
        raise InvalidScores("the log of a tail's mass is no number or above 0")
