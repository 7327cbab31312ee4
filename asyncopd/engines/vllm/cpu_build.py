"""What vLLM's CPU build needs in the environment of the processes it starts, wherever it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def cpu_build_variables(environment: Mapping[str, str], torch: Path | None = None) -> dict[str, str]:
    """Return the variables to change in `environment`; `torch` is that package's directory, by default the installed.

    vLLM compiles a helper of its sampler with C++ when the first log-probabilities are asked for. That needs a
    compiler, takes half a minute, and fails below a directory with a space in its name; so it is left out, which
    costs a few milliseconds a step with vocabularies of 50,000 tokens.
    """
    variables = {"TORCHDYNAMO_DISABLE": environment.get("TORCHDYNAMO_DISABLE", "1")}
    libraries = (torch or _torch_directory()) / "lib"
    preloaded = environment.get("LD_PRELOAD", "")
    # vLLM preloads torch's OpenMP by its path, which the loader cuts at spaces. By name it is found all the same.
    if " " in str(libraries) and "libgomp" not in preloaded:
        for library in libraries.glob("libgomp*.so*"):
            variables["LD_PRELOAD"] = ":".join(filter(None, [preloaded, library.name]))
            variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(libraries), environment.get("LD_LIBRARY_PATH")]))
    return variables


def _torch_directory() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is a dependency"
    return Path(spec.origin).parent


def is_cpu_build() -> bool:
    """Return whether the vLLM that is installed runs on CPUs, without importing it."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return True  # the CPU build is a distribution of another name
