"""A teacher that is a local model in a process of its own.

Invariants: the model is loaded before the first request is scored; a request whose caller gives up
kills the process, so that the next one does not queue behind it; a process that died is replaced by the
next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from transformers import AutoConfig

from asyncopd.config.teacher import TeacherSection
from asyncopd.errors import UserError
from asyncopd.models.resolve import resolve_template
from asyncopd.records import ScoreRequest, Scores, Support, SupportKind, ToolSpec, Trajectory
from asyncopd.runtime.process import WorkerLost, WorkerProcess
from asyncopd_teachers import forward
from asyncopd_teachers.identity import checkpoint_hash
from asyncopd_teachers.views import student_view

_log = logging.getLogger(__name__)

# For callers without a deadline of their own; the scoring service has a shorter one.
_LONGEST_S = 3600.0


class TorchTeacher:
    """Scores with the Hugging Face model in `directory`, reading what the student read.

    Construction is cheap: the process starts with `start`, or with the first request.
    """

    def __init__(
        self, directory: Path, section: TeacherSection, *, threads: int, tools: Sequence[ToolSpec] = ()
    ) -> None:
        """`tools` are the environment's, which every teacher is given and this one has no use for.

        Raises `UserError` if `section.options` names any: this teacher has none.
        """
        if section.options:
            raise UserError("teacher.options", f"got {', '.join(section.options)}", f"{section.use} has none")
        config = AutoConfig.from_pretrained(directory).get_text_config()
        self._vocabulary: int = config.vocab_size
        self._max_context: int = config.max_position_embeddings
        self._directory = directory
        self._section = section
        self._threads = threads
        self._worker: WorkerProcess | None = None
        self._starting = asyncio.Lock()

    @cached_property
    def identity(self) -> str:
        """A name over the contents of weights, configuration, tokenizer and template, and the dtype."""
        template = self._section.chat_template
        others = [] if template is None else [resolve_template(template)]
        return f"torch:{self._section.dtype}:{checkpoint_hash(self._directory, *others)}"

    @property
    def supports(self) -> tuple[Support, ...]:
        kinds = (SupportKind.TEACHER_TOPK, SupportKind.STUDENT_TOPK, SupportKind.DRAWS)
        return (*(Support(kind=kind, width=self._vocabulary) for kind in kinds), Support(kind=SupportKind.SAMPLED))

    def view(self, trajectory: Trajectory, support: Support) -> list[ScoreRequest]:
        """Return a request a segment: the segment's own ids, at its trained rows."""
        return student_view(trajectory, support, self._section.temperature)

    async def start(self) -> None:
        """Start the process and load the model. Raises `UserError` if it cannot be loaded."""
        await self._started()
        # Reads all weights: off the event loop, before the first key is needed.
        await asyncio.to_thread(lambda: self.identity)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Answer in order. If the process dies it is replaced and asked once more.

        Raises `ConnectionError` if it dies again, `UserError` for what the model cannot answer.
        """
        for request in requests:
            self._require(request)
        try:
            return await self._ask(list(requests))
        except WorkerLost as error:
            _log.warning("%s; it is started again", error)
        try:
            return await self._ask(list(requests))
        except WorkerLost as error:
            raise ConnectionError(f"{error}, twice over the same {len(requests)} segments") from error

    async def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            await self._worker.close()
            self._worker = None

    async def _ask(self, requests: list[ScoreRequest]) -> list[Scores]:
        worker = await self._started()
        try:
            return await worker.call(forward.score, requests, self._section.batch_tokens, timeout_s=_LONGEST_S)
        except WorkerLost:
            self._worker = None
            await worker.close()
            raise
        except asyncio.CancelledError:
            self._worker = None
            _kill(worker)
            raise

    async def _started(self) -> WorkerProcess:
        async with self._starting:
            if self._worker is None:
                worker = await WorkerProcess.start("teacher", self._threads)
                try:
                    await worker.call(forward.load, self._directory, self._section.dtype, timeout_s=_LONGEST_S)
                except BaseException:
                    _kill(worker)
                    raise
                self._worker = worker
            return self._worker

    def _require(self, request: ScoreRequest) -> None:
        if request.support.width > self._vocabulary:
            raise UserError(
                f"objective.width {request.support.width}",
                f"the teacher's vocabulary has {self._vocabulary} tokens",
                "lower the width",
            )
        if len(request.context_ids_C) > self._max_context:
            raise UserError(
                "teacher.model",
                f"it reads {self._max_context} tokens, a segment has {len(request.context_ids_C)}",
                "lower engine.max_context, or choose a teacher with a longer context",
            )


def _kill(worker: WorkerProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.kill()
