"""Segments hold what was shown and what was sampled."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.records import Draws, Generation, LossMask, Version
from asyncopd.rollout.recorder import Recorder

ids = st.lists(st.integers(0, 999), max_size=6)
# A turn: what is sampled, what follows, and whether the prefix breaks there.
turns = st.lists(st.tuples(ids, ids, st.booleans()), max_size=6)


def generation(sampled: list[int], first: int, draws: Draws | None = None) -> Generation:
    count = len(sampled)
    return Generation(
        ids_R=np.array(sampled, np.int32),
        logp_R=-np.arange(first, first + count, dtype=np.float32),
        version_R=np.array([Version(1, first + row).pack() for row in range(count)], np.int64),
        mixed_kv_R=np.arange(count).astype(np.uint8) % 2,
        stop_reason="stop",
        draws=draws,
    )


@given(prompt=ids, turns=turns)
def test_each_sampled_token_is_trainable_in_exactly_one_segment(
    prompt: list[int], turns: list[tuple[list[int], list[int], bool]]
) -> None:
    recorder, sampled, count = Recorder(prompt), [], 1
    for turn, (said, observed, breaks) in enumerate(turns):
        recorder.generated(generation(said, count), turn)
        sampled += [(token, -float(count + row), turn) for row, token in enumerate(said)]
        count += len(said)
        if breaks:
            recorder.restart([*prompt, *observed])
        else:
            recorder.observed(observed, turn)
    trained = [
        (int(segment.ids_T[row]), float(segment.logp_T[row]), int(segment.turn_T[row]))
        for segment in recorder.segments()
        for row in segment.trained_rows
    ]
    assert trained == sampled


def test_segment_is_prompt_then_turns_as_sampled_and_observed() -> None:
    recorder = Recorder([1, 2])
    recorder.generated(generation([3, 4], first=1), 0)
    recorder.observed([5], 0)
    assert recorder.ids == [1, 2, 3, 4, 5]
    recorder.generated(generation([6], first=3), 1)
    (segment,) = recorder.segments()
    assert segment.ids_T.tolist() == [1, 2, 3, 4, 5, 6]
    assert segment.loss_mask_T.tolist() == [0, 0, 1, 1, 0, 1]
    assert segment.logp_T.tolist() == [0, 0, -1, -2, 0, -3]
    assert segment.version_T.tolist() == [
        -1, -1, Version(1, 1).pack(), Version(1, 2).pack(), -1, Version(1, 3).pack(),
    ]  # fmt: skip
    assert segment.mixed_kv_T.tolist() == [0, 0, 0, 1, 0, 0]
    assert segment.turn_T.tolist() == [-1, -1, 0, 0, 0, 1]


def test_what_came_before_a_break_is_context_of_the_next_segment() -> None:
    recorder = Recorder([1])
    recorder.generated(generation([2, 3], first=1), 0)
    recorder.restart([1, 3, 9])
    recorder.generated(generation([4], first=3), 1)
    first, second = recorder.segments()
    assert first.ids_T.tolist() == [1, 2, 3]
    assert second.ids_T.tolist() == [1, 3, 9, 4]
    assert second.loss_mask_T.tolist() == [0, 0, 0, LossMask.TRAIN]
    assert second.turn_T.tolist() == [-1, -1, -1, 1]


def test_prompt_on_which_nothing_was_sampled_is_no_segment() -> None:
    recorder = Recorder([1, 2])
    assert recorder.segments() == []
    recorder.generated(generation([3], first=1), 0)
    recorder.restart([1])
    assert len(recorder.segments()) == 1


def test_observation_that_nothing_followed_is_left_out() -> None:
    recorder = Recorder([1, 2])
    recorder.generated(generation([3], first=1), 0)
    recorder.observed([4, 5], 0)
    (segment,) = recorder.segments()
    assert segment.ids_T.tolist() == [1, 2, 3]


def test_rows_of_draws_are_the_sampled_tokens_of_all_turns_in_order() -> None:
    recorder = Recorder([1])
    for turn, count in enumerate((2, 1)):
        rows = np.full((count, 4), turn)
        draws = Draws(head_ids_RK=rows.astype(np.int32), head_logp_RK=rows.astype(np.float32))
        recorder.generated(generation([7] * count, first=1, draws=draws), turn)
    (segment,) = recorder.segments()
    assert segment.draws is not None and segment.draws.head_ids_RK is not None
    assert segment.draws.head_ids_RK[:, 0].tolist() == [0, 0, 1]
    assert segment.draws.iid_ids_RM is None


def test_tokens_whose_draws_were_lost_teach_nothing() -> None:
    recorder = Recorder([0])
    draws = Draws(head_ids_RK=np.zeros((3, 1), np.int32), head_logp_RK=np.zeros((3, 1), np.float32))
    whole = generation([7, 7, 7], first=1, draws=draws)
    recorder.generated(msgspec.structs.replace(whole, undrawn_R=np.array([1, 1, 0], np.uint8)), 0)
    recorder.generated(generation([], first=4), 0)
    (segment,) = recorder.segments()
    assert segment.loss_mask_T.tolist() == [0, LossMask.INFRASTRUCTURE, LossMask.INFRASTRUCTURE, LossMask.TRAIN]
    assert segment.draws is not None and segment.draws.head_ids_RK is not None and len(segment.draws.head_ids_RK) == 3
