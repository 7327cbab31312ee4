"""The commands, one a file."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from asyncopd.cli.bench import bench
from asyncopd.cli.bootstrap import bootstrap
from asyncopd.cli.doctor import doctor
from asyncopd.cli.eval import evaluate
from asyncopd.cli.serve import serve
from asyncopd.cli.sft import sft
from asyncopd.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Post-train tool-using agents by asynchronous on-policy distillation.",
    epilog="With --debug, any command shows where an error came from.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("asyncopd"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before any command."""


app.command()(train)
app.command(name="eval")(evaluate)
app.command()(sft)
app.command()(bootstrap)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
app.add_typer(bench, name="bench")
app.command()(doctor)
