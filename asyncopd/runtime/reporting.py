"""What a run says of itself: to callbacks, to its files, and at its end."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncopd.config.root import TrainConfig
from asyncopd.evaluate.evaluate import Evaluation
from asyncopd.records import Differences, StepReport, Trajectory
from asyncopd.runtime.callbacks import Callback, Progress
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.runtime.totals import totals
from asyncopd.scheduler.commands import TrainStep
from asyncopd.scheduler.scheduler import Scheduler
from asyncopd.scoring.service import ScoringService
from asyncopd.scoring.stats import ScoringStats
from asyncopd.telemetry.alarms import Alarms, agreement_limit, disagreement
from asyncopd.telemetry.metrics import Metrics
from asyncopd.telemetry.sinks import JsonLines


class Reporter:
    """Collects a run's figures and passes them on."""

    def __init__(self, directory: RunDirectory, config: TrainConfig, callbacks: Sequence[Callback]) -> None:
        self.evaluations: dict[str, dict[str, Any]] = {}
        self._directory = directory
        self._steps = config.run.steps
        self._bound = config.scheduler.max_staleness
        self._agreement_limit = agreement_limit(config.engine, config.rollout, config.student.dtype)
        self._alarms = Alarms(self.warn)
        self._last_weights: dict[str, Any] = {}
        self._callbacks = callbacks
        self._metrics_file = JsonLines(directory.metrics)
        self._trajectories_file = JsonLines(directory.trajectories)
        self._began = time.monotonic()
        self._setup_seconds = 0.0
        self._seconds_before = 0.0
        self._training_began = self._began
        self._training_seconds = 0.0
        if directory.evaluation.exists():
            self.evaluations = json.loads(directory.evaluation.read_text(encoding="utf-8"))

    def stage(self, message: str) -> None:
        for callback in self._callbacks:
            callback.on_stage(message)

    def warn(self, message: str) -> None:
        for callback in self._callbacks:
            callback.on_warning(message)

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Keep a measured success, so that a resumed run does not measure it again."""
        self.evaluations[name] = msgspec.to_builtins(evaluation)
        self._directory.write_json(self._directory.evaluation, self.evaluations)
        for callback in self._callbacks:
            callback.on_evaluation(name, self.evaluations[name])

    def go_on(self, step: int, metrics: Metrics) -> dict[str, Any] | None:
        """Forget the figures of steps after `step`; count on from those before it.

        Returns what `totals` counted up to there, `None` if that is nothing.
        """
        lines = [line for line in self._metrics_file.read() if line["step"] <= step]
        self._metrics_file.rewrite(lines)
        for line in lines:
            metrics.trained(
                {int(lag): count for lag, count in line["lags"].items()},
                msgspec.convert(line["agreement"], Differences, strict=False),
                msgspec.convert(line["mixed"], Differences, strict=False),
            )
        self._alarms.restore(lines[-1]["alarms"] if lines else [])
        self._seconds_before = lines[-1]["seconds"] if lines else 0.0
        return lines[-1]["totals"] if lines else None

    def training_begins(self) -> None:
        self._setup_seconds = time.monotonic() - self._began
        self._training_began = time.monotonic() - self._seconds_before

    def training_ends(self) -> None:
        self._training_seconds = time.monotonic() - self._training_began

    def trajectory(self, attempt: int, trajectory: Trajectory) -> None:
        """Write the conversation of an attempt, to be read by people."""
        messages = [*trajectory.prompt, *(message for turn in trajectory.turns for message in turn.messages)]
        self._trajectories_file.write(
            {
                "attempt": attempt,
                "task": trajectory.task.id,
                "domain": trajectory.task.domain,
                "outcome": trajectory.outcome,
                "reward": trajectory.reward,
                "messages": [message.for_template() for message in messages],
            }
        )

    def step(
        self, command: TrainStep, report: StepReport, scheduler: Scheduler, metrics: Metrics, scoring: ScoringStats
    ) -> None:
        """Write a step's figures and show its progress."""
        seconds = time.monotonic() - self._training_began
        disagrees = disagreement(report.agreement, self._agreement_limit)
        if disagrees is not None:
            self._alarms.ring("engine-learner mismatch", report.step + 1, disagrees)
        progress = Progress(
            step=report.step + 1,
            steps=self._steps,
            seconds=seconds,
            reward=sum(member.reward for member in command.members) / len(command.members),
            attempts=scheduler.ledger.attempts,
            tokens_per_second={stage: metrics.tokens[stage] / seconds for stage in metrics.STAGES},
            report=report,
        )
        self._metrics_file.write(
            {
                "step": progress.step,
                "seconds": round(seconds, 3),
                "reward": progress.reward,
                "tokens": report.tokens,
                "learner_seconds": round(report.seconds, 4),
                "lags": {str(lag): count for lag, count in sorted(report.lag_histogram.items())},
                "tokens_per_second": {name: round(rate, 1) for name, rate in progress.tokens_per_second.items()},
                "attempts": progress.attempts,
                **report.metrics,
                "agreement": msgspec.to_builtins(report.agreement, str_keys=True),
                "mixed": msgspec.to_builtins(report.mixed, str_keys=True),
                "alarms": self._alarms.to_json(),
                "totals": totals(metrics, scoring),
            }
        )
        if not report.tokens:
            masked: Counter[str] = sum((Counter(attempt.masked) for attempt in report.attempts), Counter())
            fates = ", ".join(f"{count} {fate}" for fate, count in sorted(masked.items()))
            self.warn(f"step {progress.step} taught nothing; its tokens are masked ({fates or 'it had none'})")
        for callback in self._callbacks:
            callback.on_step(progress)

    def compared(self, step: int, differences: dict[str, Differences]) -> None:
        """Take in how the weights of the last step agree, by engine."""
        self._last_weights = {engine: found.figures() for engine, found in differences.items()}
        for engine, found in differences.items():
            disagrees = disagreement(found, self._agreement_limit, f"engine {engine}")
            if disagrees is not None:
                self._alarms.ring(f"mismatch of engine {engine} at the end", step, disagrees)

    def summary(self, scheduler: Scheduler, metrics: Metrics, service: ScoringService) -> dict[str, Any]:
        """Return what `summary.json` holds, documented in docs/run-directory.md."""
        seconds = self._training_seconds or 1e-9
        return {
            **{name: self.evaluations.get(name) for name in ("student_before", "student_after", "teacher")},
            "wall_seconds": time.monotonic() - self._began,
            "setup_seconds": self._setup_seconds,
            "training_seconds": self._training_seconds,
            "busy_seconds": {
                "rollout": metrics.busy["rollout"].seconds,
                "scoring": service.stats.teacher_seconds,
                "learner": metrics.busy["learner"].seconds,
            },
            "tokens_per_second": {stage: metrics.tokens[stage] / seconds for stage in metrics.STAGES},
            "staleness": {**metrics.lag_summary(), "bound": self._bound, "histogram": _by_key(metrics.lags)},
            "cache": {
                "hits": service.stats.hits,
                "misses": service.stats.misses,
                "bytes": service.stats.bytes,
            },
            "weight_updates": dict(metrics.updates),
            "engines": {name: dataclasses.asdict(counts) for name, counts in metrics.engines.items()},
            "logprob_diff": {
                **metrics.agreement.figures(),
                "mixed_kv": metrics.mixed.figures(),
                "last_weights": self._last_weights,
            },
            "alarms": self._alarms.to_json(),
            "loop_lag_p99_ms": metrics.loop_lag.quantile(0.99) * 1e3,
            "conservation": scheduler.ledger.to_json(),
        }

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary and say that the run is over."""
        self._directory.write_json(self._directory.summary, summary)
        for callback in self._callbacks:
            callback.on_finish(summary)

    def close(self) -> None:
        self._metrics_file.close()
        self._trajectories_file.close()


def _by_key(counts: Counter[int]) -> dict[str, int]:
    return {str(key): counts[key] for key in sorted(counts)}
