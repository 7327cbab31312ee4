"""Starting the engine that a configuration names."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.vllm.launch import vllm_environment
from asyncopd.records import NO_DRAWS, DrawSpec, Version
from asyncopd.seams import DeadlineExceeded, Engine


async def start_engine(
    name: str,
    directory: Path,
    section: EngineSection,
    *,
    dtype: Dtype,
    threads: int,
    seed: int,
    version: Version = Version(0, 0),  # noqa: B008 - immutable
    draws: DrawSpec = NO_DRAWS,
    url: str | None = None,
    logs: Path | None = None,
) -> Engine:
    """Serve the checkpoint in `directory` as `version` on the engine `section.use`.

    `threads` are compute threads; `draws` are the most a request may ask for; `url` is the server to connect to
    instead of starting one, whose weights come with its first update. A server that is started writes its log into
    the directory `logs`. Raises `DeadlineExceeded` after `section.start_timeout_s`, `EngineDied` where its process
    was killed meanwhile, and what the engine raises for a model it refuses.
    """
    engine_class = await asyncio.to_thread(_import, section.use, threads)
    log = {"log": logs / f"{name}.log"} if section.use == "vllm_server" and logs is not None else {}
    try:
        if url is not None:
            return await engine_class.connect(name, url, directory, section, dtype=dtype, version=version, draws=draws)
        return await engine_class.start(
            name, directory, section, dtype=dtype, threads=threads, seed=seed, version=version, draws=draws, **log
        )
    except TimeoutError as error:
        late = f"engine {name} did not start within {section.start_timeout_s:g} s (engine.start_timeout_s)"
        raise DeadlineExceeded(f"{late}; {error}" if str(error) else late) from error


def _import(use: str, threads: int) -> Any:
    if use == "torch":
        return importlib.import_module("asyncopd.engines.torch").TorchEngine
    if use == "vllm_server":
        return importlib.import_module("asyncopd.engines.server.start")
    with vllm_environment(threads):  # parts of it are read when vLLM is first imported
        return importlib.import_module("asyncopd.engines.vllm.engine").VllmEngine
