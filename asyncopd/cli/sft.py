"""`asyncopd sft`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

import typer

from asyncopd.cli.console import ConsoleProgress, output
from asyncopd.config.loading import load
from asyncopd.config.root import SftConfig
from asyncopd.runtime.run_directory import RunDirectory


def sft(
    config: Annotated[Path, typer.Argument(help="A YAML configuration, or the config.yaml of a run directory.")],
    set_: Annotated[list[str], typer.Option("--set", help="Override a field: section.field=value.")] = [],  # noqa: B006
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in run.dir.")] = False,
) -> None:
    """Fine-tune a student on an expert's episodes."""
    from asyncopd.runtime.sft import sft as run

    console = output()
    loaded = load(config, set_, SftConfig)
    directory = RunDirectory.meant(config, set_, loaded.run)
    loaded = loaded.model_copy(update={"run": loaded.run.model_copy(update={"dir": directory.path})})
    progress = ConsoleProgress(console)
    try:
        result = asyncio.run(run(loaded, resume=resume, callbacks=[progress]))
    except KeyboardInterrupt:
        if directory.config.exists():
            path = shlex.quote(str(directory.config))
            console.print(f"stopped; resume with: asyncopd sft {path} --resume", soft_wrap=True, markup=False)
        raise
    finally:
        progress.close()
    console.print(f"run directory: {result.run}\nfine-tuned model: {result.student}", soft_wrap=True)
