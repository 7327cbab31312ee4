"""What teachers read, and that what they score stays the student's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from asyncopd.config.teacher import TeacherSection
from asyncopd.errors import UserError
from asyncopd.records import (
    Draws,
    LossMask,
    Message,
    Outcome,
    Segment,
    Support,
    SupportKind,
    Task,
    Timings,
    ToolSpec,
    Trajectory,
    Turn,
)
from asyncopd.text.chat import Chat
from asyncopd_teachers.privileged import PrivilegedTeacher
from asyncopd_teachers.torch import TorchTeacher

TOPK = Support(kind=SupportKind.TEACHER_TOPK, width=8)
TOOL = ToolSpec(name="price", description="The price of a cup.", parameters={"type": "object", "properties": {}})
PROMPT = [Message(role="system", content="a system"), Message(role="user", content="the price of a cup")]


def segment(runs: list[tuple[list[int], int, int]]) -> Segment:
    """Return a segment of runs (ids, turn, mask)."""
    lengths = [len(ids) for ids, _, _ in runs]
    ids_T = np.concatenate([np.array(ids, np.int32) for ids, _, _ in runs])
    mask_T = np.repeat([mask for _, _, mask in runs], lengths).astype(np.uint8)
    return Segment(
        ids_T=ids_T,
        loss_mask_T=mask_T,
        logp_T=np.zeros(len(ids_T), np.float32),
        version_T=np.zeros(len(ids_T), np.int64),
        mixed_kv_T=np.zeros(len(ids_T), np.uint8),
        turn_T=np.repeat([turn for _, turn, _ in runs], lengths).astype(np.int16),
    )


def trajectory(segments: list[Segment], turns: list[Turn], privileged: list[Message]) -> Trajectory:
    return Trajectory(
        task=Task(id="t", domain="d", data={}),
        attempt=0,
        prompt=PROMPT,
        segments=segments,
        turns=turns,
        outcome=Outcome.SUCCESS,
        reward=0.0,
        privileged=privileged,
    )


def turn(said: str, answered: str) -> Turn:
    return Turn(
        agent="agent",
        messages=[Message(role="assistant", content=said), Message(role="tool", content=answered)],
        tool_calls=[],
        rewards={},
        timings=Timings(),
        stop_reason="stop",
    )


@pytest.fixture
def informed(checkpoint: Callable[[int], Path]) -> PrivilegedTeacher:
    return PrivilegedTeacher(checkpoint(0), TeacherSection(model="x", temperature=0.5), threads=1, tools=[TOOL])


@pytest.fixture
def prompt_ids(word_tokenizer: PreTrainedTokenizerFast) -> Callable[[list[Message]], list[int]]:
    return Chat(word_tokenizer, [TOOL]).prompt_ids


def test_a_plain_teacher_reads_what_the_student_read(checkpoint: Callable[[int], Path]) -> None:
    teacher = TorchTeacher(checkpoint(0), TeacherSection(model="x", temperature=0.5), threads=1, tools=[TOOL])
    lived = segment([([1, 2], -1, 0), ([3, 4], 0, 1), ([5], 0, 0), ([6, 7], 1, LossMask.FRESHNESS), ([8], 2, 1)])
    (request,) = teacher.view(trajectory([lived], [], [Message(role="user", content="secret")]), TOPK)
    assert request.context_ids_C.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert request.row_map_R.tolist() == [2, 3, 7]
    assert request.scored_ids_R.tolist() == [3, 4, 8]
    assert request.temperature == 0.5


@pytest.mark.parametrize(
    ("kind", "width", "expected"),
    [
        (SupportKind.STUDENT_TOPK, 2, [[10, 11], [40, 41]]),
        (SupportKind.DRAWS, 6, [[10, 11, 15, 3, 20, 21], [40, 41, 45, 7, 50, 51]]),
        (SupportKind.DRAWS, 4, [[10, 11, 15, 3], [40, 41, 45, 7]]),
    ],
)
def test_candidates_are_those_of_the_trained_rows(
    kind: SupportKind, width: int, expected: list[list[int]], checkpoint: Callable[[int], Path]
) -> None:
    teacher = TorchTeacher(checkpoint(0), TeacherSection(model="x"), threads=1)
    lived = segment([([1, 2], -1, 0), ([3], 0, 1), ([4], 0, LossMask.FRESHNESS), ([5, 6], 0, 0), ([7], 1, 1)])
    draws = Draws(
        head_ids_RK=np.array([[10, 11], [30, 31], [40, 41]], np.int32),
        head_logp_RK=np.zeros((3, 2), np.float32),
        tail_ids_RM=np.array([[15], [36], [45]], np.int32),
        tail_logp_RM=np.zeros((3, 1), np.float32),
        iid_ids_RM=np.array([[20, 21], [35, 36], [50, 51]], np.int32),
        iid_logp_RM=np.zeros((3, 2), np.float32),
    )
    lived = msgspec.structs.replace(lived, draws=draws)
    (request,) = teacher.view(trajectory([lived], [], []), Support(kind=kind, width=width))
    assert request.candidate_ids_RK is not None and request.candidate_ids_RK.tolist() == expected
    with pytest.raises(ValueError, match="are wanted"):
        teacher.view(trajectory([lived], [], []), Support(kind=kind, width=9))


def test_scored_ids_and_all_that_follows_the_prompt_stay_the_students(
    informed: PrivilegedTeacher, prompt_ids: Callable[[list[Message]], list[int]]
) -> None:
    opening = prompt_ids(PROMPT)
    lived = segment([(opening, -1, 0), ([30, 31], 0, 1), ([5, 6, 7], 0, 0), ([32], 1, 1)])
    told = [Message(role="user", content="a lamp")]
    (request,) = informed.view(trajectory([lived], [turn("a", "b"), turn("c", "d")], told), TOPK)
    start = len(request.context_ids_C) - 6
    assert request.context_ids_C[start:].tolist() == [30, 31, 5, 6, 7, 32]
    assert request.context_ids_C[request.row_map_R].tolist() == request.scored_ids_R.tolist() == [30, 31, 32]
    assert request.context_ids_C[:start].tolist() == prompt_ids([PROMPT[0], *told, PROMPT[1]])
    assert request.temperature == 0.5


def test_privileged_system_messages_join_the_system_message(
    informed: PrivilegedTeacher, prompt_ids: Callable[[list[Message]], list[int]]
) -> None:
    lived = segment([(prompt_ids(PROMPT), -1, 0), ([30], 0, 1)])
    told = [Message(role="system", content="a cup"), Message(role="user", content="a lamp")]
    (request,) = informed.view(trajectory([lived], [turn("a", "b")], told), TOPK)
    expected = [Message(role="system", content="a system\n\na cup"), told[1], PROMPT[1]]
    assert request.context_ids_C[:-1].tolist() == prompt_ids(expected)


def test_privileged_messages_are_read_as_often_as_asked(
    checkpoint: Callable[[int], Path], prompt_ids: Callable[[list[Message]], list[int]]
) -> None:
    section = TeacherSection(model="x", options={"repeats": 2})
    twice = PrivilegedTeacher(checkpoint(0), section, threads=1, tools=[TOOL])
    lived = segment([(prompt_ids(PROMPT), -1, 0), ([30], 0, 1)])
    told = [Message(role="user", content="a lamp")]
    (request,) = twice.view(trajectory([lived], [turn("a", "b")], told), TOPK)
    assert request.context_ids_C[:-1].tolist() == prompt_ids([PROMPT[0], *told, *told, PROMPT[1]])


@pytest.mark.parametrize("options", [{"repeats": 0}, {"repeat": 2}])
def test_wrong_options_are_named(options: dict[str, int], checkpoint: Callable[[int], Path]) -> None:
    with pytest.raises(UserError, match=f"teacher.options.*{next(iter(options))}"):
        PrivilegedTeacher(checkpoint(0), TeacherSection(model="x", options=options), threads=1)


def test_a_later_segment_is_told_the_turns_its_prompt_stands_for(
    informed: PrivilegedTeacher, prompt_ids: Callable[[list[Message]], list[int]]
) -> None:
    turns = [turn("a cup", "tool"), turn("lamp", "tool error"), turn("of", "the")]
    before = [*PROMPT, *turns[0].messages, *turns[1].messages]
    first = segment([(prompt_ids(PROMPT), -1, 0), ([30], 0, 1), ([31], 1, 1)])
    second = segment([(prompt_ids(before), -1, 0), ([40, 41], 2, 1)])
    told = [Message(role="user", content="a price")]
    requests = informed.view(trajectory([first, second], turns, told), TOPK)
    assert requests[1].context_ids_C[:-2].tolist() == prompt_ids([before[0], *told, *before[1:]])
    assert requests[1].context_ids_C[requests[1].row_map_R].tolist() == [40, 41]


def test_without_anything_privileged_the_key_is_the_plain_teachers(
    informed: PrivilegedTeacher, prompt_ids: Callable[[list[Message]], list[int]], checkpoint: Callable[[int], Path]
) -> None:
    plain = TorchTeacher(checkpoint(0), TeacherSection(model="x", temperature=0.5), threads=1)
    lived = trajectory([segment([(prompt_ids(PROMPT), -1, 0), ([30], 0, 1)])], [turn("a", "b")], [])
    (one,), (other,) = informed.view(lived, TOPK), plain.view(lived, TOPK)
    assert one.context_ids_C.tolist() == other.context_ids_C.tolist()
    assert one.row_map_R.tolist() == other.row_map_R.tolist()
    assert informed.identity == plain.identity
