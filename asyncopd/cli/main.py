"""The command line: errors in one line, an exit code for each kind of end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn

# vLLM warns while it is imported, before it sets its own level; the processes it spawns import this module first.
logging.getLogger("vllm").setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "ERROR").upper())

_INTERRUPTED = 130


def main() -> None:
    """Run the command line.

    Exit codes: 2 for what the user can put right, 1 for any other error, each with one line and a traceback
    only with `--debug`; 130 for Ctrl-C and SIGTERM.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(debug="--debug" in sys.argv, arguments=[argument for argument in sys.argv[1:] if argument != "--debug"])
    except KeyboardInterrupt:
        _end_undisturbed()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _end_undisturbed()
        raise


def _end_undisturbed() -> NoReturn:
    """Exit; an impatient second Ctrl-C cannot break what is left to do."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(_INTERRUPTED) from None


def _run(*, debug: bool, arguments: list[str]) -> None:
    # Imported here, where an interrupt of the slow imports ends as any other.
    import typer

    from asyncopd.cli.app import app
    from asyncopd.errors import UserError

    try:
        app(arguments, standalone_mode=True)
    except UserError as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except Exception as error:
        if debug:
            raise
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        typer.echo(f"error: {problem}; --debug shows where, and so does run.log in the run directory", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
