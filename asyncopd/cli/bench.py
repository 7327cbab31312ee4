"""`asyncopd bench`: how fast the parts are, each alone or side by side."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncopd.bench.report import json_line, lines
from asyncopd.cli.console import output
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig

bench = typer.Typer(no_args_is_help=True, help="Measure how fast the parts are.")

Set = Annotated[list[str], typer.Option("--set", help="Override a field: section.field=value.")]
Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON.")]
Config = Annotated[Path, typer.Argument(help="A YAML configuration.")]


@bench.command()
def engine(
    config: Config,
    set_: Set = [],  # noqa: B006
    concurrent: Annotated[int, typer.Option(min=1, help="Turns under way at once.")] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Turns of one repeat.")] = 256,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each turn.")] = 48,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 7,
    server: Annotated[bool, typer.Option(help="Measure our engine over HTTP too.")] = True,
    json: Json = False,
) -> None:
    """Compare our engine with bare vLLM, with a learner beside both; and its log-probs with the learner's."""
    from asyncopd.bench.engine import bench_engine
    from asyncopd.bench.setting import EngineBench

    settings = EngineBench(concurrent, requests, tokens, repeats, server)
    console = output()
    figures = asyncio.run(bench_engine(load(config, set_, TrainConfig), settings, console.print))
    _print(figures, repeats, json)


@bench.command()
def replay(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    set_: Set = [],  # noqa: B006
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to take, by default all that are recorded.")] = None,
    json: Json = False,
) -> None:
    """Take the steps of a recorded run again, with the learner alone."""
    from asyncopd.bench.replay import bench_replay

    _print(asyncio.run(bench_replay(run, set_, steps, output().print)), 1, json)


@bench.command()
def rollout(
    config: Config,
    set_: Set = [],  # noqa: B006
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to live.")] = 256,
    json: Json = False,
) -> None:
    """Live episodes with engine and environments alone."""
    from asyncopd.bench.rollout import bench_rollout

    _print(asyncio.run(bench_rollout(load(config, set_, TrainConfig), episodes, output().print)), 1, json)


def _print(figures: dict[str, Any], repeats: int, json: bool) -> None:
    for line in lines(figures):
        typer.echo(line)
    if json:
        typer.echo(json_line(figures, repeats, ["asyncopd", *sys.argv[1:]]))
