"""`train`: the whole job from Python, with restarts after a lost process."""

from __future__ import annotations

import asyncio
import logging
import shlex
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from asyncopd.config.loading import load, validate
from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError
from asyncopd.runtime.callbacks import Callback
from asyncopd.runtime.interruption import Interrupted, Interruption
from asyncopd.runtime.local import run_once
from asyncopd.runtime.prepare import Prepared, prepare
from asyncopd.runtime.process import WorkerLost
from asyncopd.runtime.reporting import Reporter
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.sandbox.strength import in_force
from asyncopd.seams import EngineDied
from asyncopd.weights.protocol import PublishFailed

_MAX_RESTARTS = 3

_log = logging.getLogger(__name__)


def train(
    config: TrainConfig | dict[str, Any] | Path | str,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Run a training to its end and return its summary, the content of `summary.json`.

    `config` is a `TrainConfig`, its dictionary, or the path of its YAML; `overrides` are `a.b=value`.
    `resume` goes on with the run in `run.dir`; one that is finished gives its summary again. Where an event
    loop already runs (a notebook), the run takes a thread of its own. Raises `UserError` before anything is
    spent, `Interrupted` after Ctrl-C.
    """
    if isinstance(config, str | Path):
        config = load(Path(config), overrides, TrainConfig)
    elif isinstance(config, dict):
        config = validate(config, TrainConfig)
    interruption = Interruption()
    return _in_own_loop(_train(config, resume, callbacks, interruption), interruption)


async def _train(
    config: TrainConfig, resume: bool, callbacks: Sequence[Callback], interruption: Interruption
) -> dict[str, Any]:
    directory = RunDirectory.named(config.run.dir, config.run.name)
    try:
        return await interruption.run(_in_directory(config, directory, resume, callbacks, interruption))
    except asyncio.CancelledError:
        if not directory.journal.exists():
            raise Interrupted("stopped before anything was begun") from None
        raise Interrupted(
            f"stopped; resume with: asyncopd train {shlex.quote(str(directory.config))} --resume"
        ) from None


async def _in_directory(
    config: TrainConfig,
    directory: RunDirectory,
    resume: bool,
    callbacks: Sequence[Callback],
    interruption: Interruption,
) -> dict[str, Any]:
    if resume:
        directory.check_resumable(config)
        finished = directory.finished()
        if finished is not None:
            return finished
    else:
        directory.check_new()
    prepared = await prepare(config)
    with directory.locked():
        if resume:
            directory.tidy()
        else:
            directory.create(config)
        reporter = Reporter(directory, config, callbacks)
        try:
            with _log_file(directory.log):
                walls = in_force()
                if walls is not None:
                    reporter.stage(f"sandbox: {walls}")
                summary = await _with_restarts(prepared, directory, reporter, interruption, resume)
            reporter.finish(summary)
        finally:
            reporter.close()
        return summary


async def _with_restarts(
    prepared: Prepared, directory: RunDirectory, reporter: Reporter, interruption: Interruption, resume: bool
) -> dict[str, Any]:
    for restart in range(_MAX_RESTARTS):
        try:
            return await run_once(prepared, directory, reporter, interruption, resume=resume or restart > 0)
        except (WorkerLost, EngineDied, PublishFailed) as error:
            if interruption.asked.is_set():
                raise asyncio.CancelledError from error
            reporter.warn(f"{error}; going on from the last checkpoint")
    return await run_once(prepared, directory, reporter, interruption, resume=True)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Have everything said in the file at `path`, and why the block failed if it did."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    except UserError as error:
        _log.error("%s", error)
        raise
    except Exception:
        _log.exception("the run failed")
        raise
    finally:
        root.removeHandler(handler)
        handler.close()


class _LogFile(logging.FileHandler):
    """Says nothing of a full disk, which fails the run where more than a line of its log is lost by it."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def _in_own_loop(main: Coroutine[Any, Any, dict[str, Any]], interruption: Interruption) -> dict[str, Any]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    outcome: Future[dict[str, Any]] = Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(main))
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
            outcome.set_exception(error)

    threading.Thread(target=run, name="asyncopd").start()
    while True:
        try:
            return outcome.result()
        except KeyboardInterrupt:
            if outcome.done():
                raise
            interruption.ask()
