"""Progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from asyncopd.runtime.callbacks import Callback, Progress

# Seconds between plain lines where nobody watches a live one.
_PLAIN_INTERVAL_S = 5.0


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more (`| head`), which is no reason to end a run."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit complains


def output() -> Console:
    """Return the console that a command speaks to."""
    return _Output()


class ConsoleProgress(Callback):
    """Says what a run does, with rates and the time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._last_line = 0.0

    def on_stage(self, message: str) -> None:
        if self._status is None:
            self._console.print(message)
        else:
            self._status.start()
            self._status.update(message)

    def on_evaluation(self, name: str, evaluation: dict[str, Any]) -> None:
        self._console.print(f"{name.replace('_', ' ')}: {interval(evaluation)} on {evaluation['tasks']} held-out tasks")

    def on_step(self, progress: Progress) -> None:
        line = progress_line(progress)
        if self._status is not None:
            self._status.update(line)
        last = progress.step == progress.steps
        if last or (self._status is None and time.monotonic() - self._last_line >= _PLAIN_INTERVAL_S):
            self._console.print(line)
            self._last_line = time.monotonic()

    def on_warning(self, message: str) -> None:
        self._console.print(f"[yellow]{message}[/yellow]")

    def close(self) -> None:
        """Stop the live line."""
        if self._status is not None:
            self._status.stop()


def progress_line(progress: Progress) -> str:
    """One line: step, reward, lag, rates and the time left."""
    left = progress.seconds / progress.step * (progress.steps - progress.step)
    lags = progress.report.lag_histogram
    tokens = sum(lags.values()) or 1
    lag = sum(lag * count for lag, count in lags.items()) / tokens
    rates = "  ".join(f"{name} {rate:,.0f} tok/s" for name, rate in progress.tokens_per_second.items())
    return (
        f"step {progress.step}/{progress.steps}  reward {progress.reward:.2f}  "
        f"loss {progress.report.metrics['loss']:+.4f}  lag {lag:.2f}  {rates}  {left:.0f} s left"
    )


def interval(evaluation: dict[str, Any]) -> str:
    """Return success with its 95 % interval, in per cent."""
    return f"{evaluation['success']:.1%} [{evaluation['low']:.1%}, {evaluation['high']:.1%}]"


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """Return the before/after table and the table of figures."""
    success = Table("", "success", "95 % interval", "tasks", title="held-out success", title_justify="left")
    for name in ("student_before", "student_after", "teacher"):
        evaluation = summary[name]
        if evaluation is not None:
            bounds = f"{evaluation['low']:.1%} – {evaluation['high']:.1%}"
            success.add_row(name.replace("_", " "), f"{evaluation['success']:.1%}", bounds, str(evaluation["tasks"]))
    figures = Table("figure", "value", title="the run", title_justify="left")
    staleness, cache = summary["staleness"], summary["cache"]
    figures.add_row("minutes, all", f"{summary['wall_seconds'] / 60:.1f}")
    figures.add_row("minutes, training", f"{summary['training_seconds'] / 60:.1f}")
    for stage, rate in summary["tokens_per_second"].items():
        figures.add_row(f"{stage}, tokens/s", f"{rate:,.0f}")
    figures.add_row("lag, mean / p95 / max / bound", _lags(staleness))
    figures.add_row("trained tokens by lag", _histogram(staleness["histogram"]))
    figures.add_row("cache hits / misses", f"{cache['hits']:,} / {cache['misses']:,}")
    updates = summary["weight_updates"]
    if updates:  # none counts where every engine was lost in each
        pause = updates["pause_seconds"] / updates["count"] * 1e3
        figures.add_row("weight updates, mean pause", f"{updates['count']} x {pause:.0f} ms")
        figures.add_row("weights moved, of all bytes", f"{updates['bytes'] / updates['dense_bytes']:.1%}")
    lost = [engine for engine in summary["engines"].values() if engine["lost"]]
    if lost:
        moved = sum(engine["moved"] for engine in lost)
        figures.add_row("engines lost", f"{len(lost)} of {len(summary['engines'])}, with {moved} turns that moved")
    figures.add_row("|log π − log μ|, mean / p99 / max", _differences(summary["logprob_diff"]))
    figures.add_row("event-loop lag p99", f"{summary['loop_lag_p99_ms']:.0f} ms")
    figures.add_row("conservation law", "holds" if summary["conservation"]["holds"] else "BROKEN")
    if summary["alarms"]:
        figures.add_row("alarms", ", ".join(f"{alarm['count']} x {alarm['cause']}" for alarm in summary["alarms"]))
    return [success, figures]


def _lags(staleness: dict[str, Any]) -> str:
    return f"{staleness['mean']:.2f} / {staleness['p95']:.0f} / {staleness['max']} / {staleness['bound']}"


def _differences(figures: dict[str, Any]) -> str:
    if not figures["tokens"]:
        return "no token was compared"
    return f"{figures['mean']:.2g} / {figures['p99']:.2g} / {figures['max']:.2g} nats"


def _histogram(counts: dict[str, int]) -> str:
    total = sum(counts.values()) or 1
    return "  ".join(f"{lag}: {count / total:.0%}" for lag, count in counts.items()) or "none"
