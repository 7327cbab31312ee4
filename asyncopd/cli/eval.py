"""`asyncopd eval`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asyncopd.cli.console import interval
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError


def evaluate(
    config: Annotated[Path, typer.Argument(help="A run directory, or a YAML configuration.")],
    model: Annotated[str | None, typer.Option(help="What to measure; by default the run's trained student.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="Override a field: section.field=value.")] = [],  # noqa: B006
) -> None:
    """Measure a model's success on held-out tasks, with its 95 % interval."""
    from asyncopd.runtime.measure import measure

    if config.is_dir():
        directory = config
        config = directory / "config.yaml"
        model = model or str(directory / "student")
    loaded = load(config, set_, TrainConfig)
    if loaded.evaluation.tasks == 0:
        raise UserError("evaluation.tasks", "is 0", "set how many held-out tasks to live")
    evaluation = asyncio.run(measure(loaded, model or loaded.student.model))
    outcomes = ", ".join(f"{count} {name}" for name, count in evaluation["outcomes"].items())
    line = f"{interval(evaluation)} on {evaluation['tasks']} held-out tasks: {outcomes}"
    Console().print(line, soft_wrap=True)
