"""`asyncopd bootstrap`."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer

from asyncopd.cli.console import ConsoleProgress, output
from asyncopd.config.loading import load
from asyncopd.config.root import SftConfig
from asyncopd.errors import UserError

STAGES = ("teacher", "base", "student")
KEPT = ("teacher", "student")


def bootstrap(
    out: Annotated[Path, typer.Option(help="Gets teacher/ and student/, and the runs that made them in runs/.")] = Path(
        "runs/bootstrap"
    ),
    configs: Annotated[Path, typer.Option(help="Where bootstrap-{teacher,base,student}.yaml lie.")] = Path("configs"),
    set_: Annotated[list[str], typer.Option("--set", help="Override a field of all three.")] = [],  # noqa: B006
) -> None:
    """Train a tiny teacher and a weak student from nothing, by three fine-tunings."""
    from asyncopd.runtime.sft import sft

    if out.exists():
        raise UserError(f"--out {out}", "is there already", "remove it, or choose another directory")
    console = output()
    for stage in STAGES:
        console.print(f"[bold]{stage}[/bold]")
        run = out / "runs" / stage
        start = out / "runs" / "base" / "student" if stage == "student" else out / "runs" / f"{stage}-start"
        overrides = [f"run.dir={run}", f"student.model={start}", *set_]
        config = load(configs / f"bootstrap-{stage}.yaml", overrides, SftConfig)
        progress = ConsoleProgress(console)
        try:
            result = asyncio.run(sft(config, callbacks=[progress]))
        finally:
            progress.close()
        if stage in KEPT:
            shutil.copytree(result.student, out / stage)
    console.print(f"teacher: {out / 'teacher'}\nstudent: {out / 'student'}", soft_wrap=True)
