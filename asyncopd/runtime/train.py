"""`train`: the whole job from Python, with restarts after a lost process."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asyncopd.config.loading import load, validate
from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError
from asyncopd.runtime.callbacks import Callback
from asyncopd.runtime.local import run_once
from asyncopd.runtime.prepare import prepare
from asyncopd.runtime.process import WorkerLost
from asyncopd.runtime.reporting import Reporter
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.seams import EngineDied
from asyncopd.weights.sync import PublishFailed

_MAX_RESTARTS = 3


class Interrupted(RuntimeError):
    """The run was asked to stop, and its checkpoint is saved; the message says how to resume."""


def train(
    config: TrainConfig | dict[str, Any] | Path | str,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Run a training to its end and return its summary, the content of `summary.json`.

    `config` is a `TrainConfig`, its dictionary, or the path of its YAML; `overrides` are `a.b=value`.
    `resume` goes on with the run in `run.dir`. Where an event loop already runs (a notebook), the run
    takes a thread of its own. Raises `UserError` before anything is spent, `Interrupted` after Ctrl-C.
    """
    if isinstance(config, str | Path):
        config = load(Path(config), overrides, TrainConfig)
    elif isinstance(config, dict):
        config = validate(config, TrainConfig)
    return _in_own_loop(lambda: _train(config, resume, callbacks))


async def _train(config: TrainConfig, resume: bool, callbacks: Sequence[Callback]) -> dict[str, Any]:
    directory = RunDirectory.named(config.run.dir, config.run.name)
    if resume and not directory.journal.exists():
        raise UserError(f"run.dir {directory.path}", "holds no run", "give the directory of an interrupted run")
    if not resume:
        directory.check_new()
    prepared = await prepare(config)
    if not resume:
        directory.create(config)
    reporter = Reporter(directory, config.run.steps, config.scheduler.max_staleness, callbacks)
    stop = asyncio.Event()
    try:
        with _log_file(directory.log), _stop_on_interrupt(stop):
            for restart in range(_MAX_RESTARTS + 1):
                try:
                    summary = await run_once(prepared, directory, reporter, stop, resume=resume or restart > 0)
                    break
                except (WorkerLost, EngineDied, PublishFailed) as error:
                    if restart == _MAX_RESTARTS or stop.is_set():
                        raise
                    reporter.warn(f"{error}; going on from the last checkpoint")
            if summary is None:
                raise Interrupted(f"stopped; resume with: asyncopd train {directory.config} --resume")
            reporter.finish(summary)
            return summary
    finally:
        reporter.close()


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _stop_on_interrupt(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C asks the run to stop; the second is the usual KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def first() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, first)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _in_own_loop(main: Callable[[], Any]) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
            outcome.append(error)

    thread = threading.Thread(target=run, name="asyncopd")
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
