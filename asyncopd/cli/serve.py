"""`asyncopd serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from asyncopd.serve.server import plan_server, run

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="A run directory, or any Hugging Face checkpoint.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="ASYNCOPD_API_KEY", help="Required of clients, as a bearer token.")
    ] = None,
) -> None:
    """Serve a student over the OpenAI API, tool calls included. Further options go to vLLM's server."""
    server = plan_server(directory, host=host, port=port, api_key=api_key, extra=context.args, environment=os.environ)
    if host not in _LOOPBACK and api_key is None:
        typer.echo(f"warning: anyone who reaches {host} may use this server; give --api-key", err=True)
    typer.echo(f"serving {directory} as {server.name!r} at {server.url}; Ctrl-C ends it", err=True)
    raise typer.Exit(run(server))
