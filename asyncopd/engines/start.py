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
) -> Engine:
    """Serve the checkpoint in `directory` as `version` on the engine `section.use`.

    `threads` are compute threads; `draws` are the most a request may ask for; `url` is the server to connect to
    instead of starting one. Raises `DeadlineExceeded` after `section.start_timeout_s`, `EngineDied` where its
    process was killed meanwhile, and what the engine raises for a model it refuses.
    """
    place = {} if url is None else {"url": url}  # engines of this process know none
    engine_class = await asyncio.to_thread(_import, section.use, threads)
    try:
        return await engine_class.start(
            name, directory, section, dtype=dtype, threads=threads, seed=seed, version=version, draws=draws, **place
        )
    except TimeoutError as error:
        late = f"engine {name} did not start within {section.start_timeout_s:g} s (engine.start_timeout_s)"
        raise DeadlineExceeded(late) from error


def _import(use: str, threads: int) -> Any:
    if use == "torch":
        return importlib.import_module("asyncopd.engines.torch").TorchEngine
    with vllm_environment(threads):  # parts of it are read when vLLM is first imported
        return importlib.import_module("asyncopd.engines.vllm.engine").VllmEngine
