"""The command line: one command a file, errors in one line."""

from __future__ import annotations

import sys

import typer

from asyncopd.cli.bootstrap import bootstrap
from asyncopd.cli.doctor import doctor
from asyncopd.cli.eval import evaluate
from asyncopd.cli.serve import serve
from asyncopd.cli.sft import sft
from asyncopd.cli.train import train
from asyncopd.errors import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command()(train)
app.command(name="eval")(evaluate)
app.command()(sft)
app.command()(bootstrap)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
app.command()(doctor)

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2, a traceback only with `--debug`."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments, standalone_mode=True)
    except UserError as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


if __name__ == "__main__":
    main()
