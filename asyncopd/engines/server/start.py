"""Engines on a server: one that is started for it, or one that runs already."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.server.client import Client
from asyncopd.engines.server.engine import ServerEngine
from asyncopd.engines.server.process import ServerProcess, server_arguments
from asyncopd.engines.server.requirements import Requirements, api_key
from asyncopd.records import NO_DRAWS, DrawSpec, Version


async def start(
    name: str,
    directory: Path,
    section: EngineSection,
    *,
    dtype: Dtype,
    threads: int,
    seed: int,
    version: Version = Version(0, 0),  # noqa: B008 - immutable
    draws: DrawSpec = NO_DRAWS,
    log: Path | None = None,
) -> ServerEngine:
    """Start a server of the checkpoint in `directory` as `version`, with up to `draws` a token.

    Raises `TimeoutError` after `section.start_timeout_s`, and `EngineDied` with the last lines of `log`.
    """
    arguments = server_arguments(directory, section, dtype=dtype, seed=seed, draws=draws)
    process = await ServerProcess.start(arguments, threads, log)
    client = Client("http://server", process.key, process.socket)
    engine = ServerEngine(name, client, section, version, draws, process)
    try:
        async with asyncio.timeout(section.start_timeout_s):
            await engine.begin(version)
    except TimeoutError as error:
        await engine.close()
        raise TimeoutError(process.last_words()) from error
    except BaseException:
        await engine.close()
        raise
    return engine


async def connect(
    name: str,
    url: str,
    directory: Path,
    section: EngineSection,
    *,
    dtype: Dtype,
    version: Version = Version(0, 0),  # noqa: B008 - immutable
    draws: DrawSpec = NO_DRAWS,
) -> ServerEngine:
    """Use the server at `url`, which runs already with the architecture of the checkpoint in `directory`.

    Its first update, which brings it to `version` or a later one, comes before anything is generated. Raises
    `UserError` for a server that cannot do what is needed, with the command that starts one that can.
    """
    client = Client(url, api_key(section))
    try:
        async with asyncio.timeout(section.start_timeout_s):
            await Requirements(client, directory, section, dtype, draws).check()
    except BaseException:
        await client.close()
        raise
    return ServerEngine(name, client, section, version, draws)
