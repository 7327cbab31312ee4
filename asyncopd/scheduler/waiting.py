"""Who waits on whom, in sentences for the watchdog."""

from __future__ import annotations

from collections.abc import Sequence

from asyncopd.records import AttemptState
from asyncopd.scheduler.state import RunState

_SHOWN = 8


def describe(state: RunState, max_concurrent: int) -> list[str]:
    """Return a sentence for each thing that is waited for; none once the run is over."""
    if state.finished:
        return []
    return [*_learner(state), *_admission(state, max_concurrent)]


def _learner(state: RunState) -> list[str]:
    progress = state.progress
    if progress.training:
        return [f"step {progress.step} waits for the learner"]
    if progress.saving > progress.durable and (state.stopping is not None or progress.step == progress.steps):
        return [f"the end of the run waits for checkpoint {progress.saving}"]
    row = state.tickets.rows.get(progress.step, [])
    by_state: dict[AttemptState, list[int]] = {}
    for attempt in (attempt for group in row for attempt in group.attempts):
        by_state.setdefault(attempt.state, []).append(attempt.id)
    waits = [
        f"attempts {_list(by_state[stage])} ({stage})"
        for stage in (AttemptState.ADMITTED, AttemptState.ROLLING, AttemptState.SCORING)
        if stage in by_state
    ]
    vacant = sum(len(group.vacant) for group in row)
    if vacant or not row:
        waits.append(f"the admission of {vacant or 'its'} attempts")
    return [f"step {progress.step} waits for {', '.join(waits)}"]


def _admission(state: RunState, max_concurrent: int) -> list[str]:
    progress, engines = state.progress, state.engines
    if state.stopping is not None:
        return []
    step = next((group.step for group in state.tickets.since(progress.next_step) if group.vacant), state.tickets.issued)
    if step == progress.steps:
        return []
    if engines.newest is None:
        return [f"admission waits for an engine to serve version {progress.published}"]
    if step <= engines.newest.step + progress.reach:
        return [f"admission waits for one of {max_concurrent} running attempts to end"]
    if progress.published > engines.newest:
        names = ", ".join(sorted(engines.versions))
        return [f"admission waits for engine {names} to load version {progress.published}"]
    return [f"admission of step {step} waits for version {progress.timeline}.{step - progress.reach} to be trained"]


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(numbers)[:_SHOWN])
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"
