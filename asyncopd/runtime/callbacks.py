"""What a caller may watch of a run. All methods run in the main process, on the run's event loop."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncopd.records import StepReport


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands after an optimizer step. Rates are per second since training began."""

    step: int
    steps: int
    seconds: float
    reward: float
    attempts: dict[str, int]
    tokens_per_second: dict[str, float]
    report: StepReport


class Callback:
    """Override what you want to see."""

    def on_stage(self, message: str) -> None:
        """Something long begins."""

    def on_evaluation(self, name: str, evaluation: dict[str, Any]) -> None:
        """Success was measured of `student_before`, `student_after` or `teacher`."""

    def on_step(self, progress: Progress) -> None:
        """An optimizer step was taken."""

    def on_warning(self, message: str) -> None:
        """Something is not as it should be, and the run goes on."""

    def on_finish(self, summary: dict[str, Any]) -> None:
        """The run ended; `summary` is what `summary.json` holds."""
