"""A torch teacher that is told more than the student was."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from pydantic import Field

from asyncopd.config.loading import validate
from asyncopd.config.section import Section
from asyncopd.config.teacher import TeacherSection
from asyncopd.models.loading import load_tokenizer
from asyncopd.models.resolve import resolve_template
from asyncopd.records import Message, ScoreRequest, Segment, Support, ToolSpec, Trajectory
from asyncopd.text.chat import Chat
from asyncopd_teachers.torch import TorchTeacher


class PrivilegedOptions(Section):
    """`teacher.options` of the privileged teacher."""

    repeats: int = Field(1, ge=1)
    """How often the privileged messages are read; small models copy what they have seen twice."""


class PrivilegedTeacher(TorchTeacher):
    """Reads the environment's privileged messages in its own prompt; what it scores stays the student's.

    Only the opening prompt of a segment is rendered anew, with this teacher's tokenizer and template;
    all ids after it are the student's, untouched.
    """

    def __init__(
        self, directory: Path, section: TeacherSection, *, threads: int, tools: Sequence[ToolSpec] = ()
    ) -> None:
        """`tools` are rendered into the prompt as they were for the student. Raises `UserError` for wrong options."""
        super().__init__(directory, section.model_copy(update={"options": {}}), threads=threads, tools=tools)
        self._repeats = validate(section.options, PrivilegedOptions, "teacher.options").repeats
        self._tools = tools

    def view(self, trajectory: Trajectory, support: Support) -> list[ScoreRequest]:
        """Return a request a segment; where nothing is privileged, the plain teacher's."""
        requests = super().view(trajectory, support)
        if not trajectory.privileged:
            return requests
        return [
            self._informed(trajectory, segment, request)
            for segment, request in zip(trajectory.segments, requests, strict=True)
        ]

    @cached_property
    def _chat(self) -> Chat:
        name = self._section.chat_template
        return Chat(load_tokenizer(self._directory, None if name is None else resolve_template(name)), self._tools)

    def _informed(self, trajectory: Trajectory, segment: Segment, request: ScoreRequest) -> ScoreRequest:
        opening = int(np.count_nonzero(segment.turn_T < 0))
        told = msgspec.structs.replace(trajectory, privileged=trajectory.privileged * self._repeats)
        prompt_ids = self._chat.prompt_ids(informed_prompt(told, _first_turn(segment)))
        context_ids_C = np.concatenate([np.array(prompt_ids, np.int32), segment.ids_T[opening:]])
        row_map_R = (request.row_map_R + (len(prompt_ids) - opening)).astype(np.int32)
        return msgspec.structs.replace(request, context_ids_C=context_ids_C, row_map_R=row_map_R)


def informed_prompt(trajectory: Trajectory, first_turn: int) -> list[Message]:
    """Return the messages before turn `first_turn`, the privileged ones among them.

    Privileged messages come right after the opening system message; privileged system messages become a
    part of it, since many templates allow but one.
    """
    system, rest = _split_system(trajectory.prompt)
    told, shown = _split_system(trajectory.privileged)
    turns = [message for turn in trajectory.turns[:first_turn] for message in turn.messages]
    text = "\n\n".join(message.content for message in (*system, *told))
    opening = [Message(role="system", content=text)] if text else []
    return [*opening, *shown, *rest, *turns]


def _first_turn(segment: Segment) -> int:
    """Return the first turn whose ids follow the opening prompt; the prompt stands for all turns before."""
    return int(segment.turn_T[segment.turn_T >= 0].min())


def _split_system(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    system = [message for message in messages if message.role == "system"]
    return system, [message for message in messages if message.role != "system"]
