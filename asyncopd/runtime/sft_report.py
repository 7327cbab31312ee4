"""What a fine-tuning says of itself: to callbacks, and to the files of its run directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncopd.evaluate.evaluate import Evaluation
from asyncopd.records import Batch, StepReport
from asyncopd.runtime.callbacks import Callback, Progress
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.telemetry.sinks import JsonLines


class SftReport:
    """Collects a fine-tuning's figures and passes them on."""

    def __init__(self, directory: RunDirectory, steps: int, callbacks: Sequence[Callback]) -> None:
        self.evaluations: dict[str, dict[str, Any]] = {}
        self._directory = directory
        self._steps = steps
        self._callbacks = callbacks
        self._metrics: JsonLines | None = None
        self._began = time.monotonic()
        self._tokens = 0

    def stage(self, message: str) -> None:
        for callback in self._callbacks:
            callback.on_stage(message)

    def warn(self, message: str) -> None:
        for callback in self._callbacks:
            callback.on_warning(message)

    def training_begins(self, steps: int) -> None:
        """Open the file of figures, in the run directory made by now, keep those of `steps`, and start the clock."""
        self._metrics = JsonLines(self._directory.metrics)
        self._metrics.rewrite([line for line in self._metrics.read() if line["step"] <= steps])
        self._began = time.monotonic()

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        self.evaluations[name] = msgspec.to_builtins(evaluation)
        for callback in self._callbacks:
            callback.on_evaluation(name, self.evaluations[name])

    def step(self, batch: Batch, report: StepReport, success: float | None) -> None:
        """Write a step's figures and show its progress; `success` where it was measured."""
        assert self._metrics is not None, "a step was taken before training began"
        self._tokens += report.tokens
        seconds = time.monotonic() - self._began
        figures = {"step": report.step + 1, "seconds": round(seconds, 3), "tokens": report.tokens, **report.metrics}
        self._metrics.write(figures if success is None else figures | {"success": success})
        progress = Progress(
            step=report.step + 1,
            steps=self._steps,
            seconds=seconds,
            reward=sum(sample.reward for sample in batch.samples) / len(batch.samples),
            attempts={},
            tokens_per_second={"learner": self._tokens / seconds},
            report=report,
        )
        for callback in self._callbacks:
            callback.on_step(progress)

    def finish(self, steps: int, wall_seconds: float) -> dict[str, Any]:
        """Write and return the summary."""
        summary = {
            "student_before": self.evaluations.get("student_before"),
            "student_after": self.evaluations.get("student_after"),
            "steps": steps,
            "wall_seconds": wall_seconds,
        }
        self._directory.write_json(self._directory.summary, summary)
        return summary

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
