"""`asyncopd train`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.pretty import pprint

from asyncopd.cli.console import ConsoleProgress, output, summary_tables
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig
from asyncopd.runtime.run_directory import RunDirectory

_INTERRUPTED = 130


def train(
    config: Annotated[Path, typer.Argument(help="A YAML configuration, or the config.yaml of a run directory.")],
    set_: Annotated[list[str], typer.Option("--set", help="Override a field: section.field=value.")] = [],  # noqa: B006
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in run.dir.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, then stop.")] = False,
) -> None:
    """Train a student by asynchronous on-policy distillation."""
    from asyncopd.runtime.interruption import Interrupted
    from asyncopd.runtime.prepare import describe, prepare
    from asyncopd.runtime.train import train as run

    console = output()
    loaded = load(config, set_, TrainConfig)
    directory = RunDirectory.meant(config, set_, loaded.run)
    loaded = loaded.model_copy(update={"run": loaded.run.model_copy(update={"dir": directory.path})})
    if dry_run:
        if not resume:
            directory.check_new()
        pprint(describe(asyncio.run(prepare(loaded))), console=console)
        return
    progress = ConsoleProgress(console)
    try:
        summary = run(loaded, resume=resume, callbacks=[progress])
    except Interrupted as interrupted:
        console.print(str(interrupted), soft_wrap=True, markup=False)
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        progress.close()
    for table in summary_tables(summary):
        console.print(table)
    console.print(
        f"run directory: {directory.path}\nserve it: asyncopd serve {shlex.quote(str(directory.path))}", soft_wrap=True
    )
