"""vLLM's CPU build starts its processes with the right OpenMP, below any directory and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncopd.engines.vllm.cpu_build import cpu_build_variables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM's CPU build is for Linux")


def openmp_below(directory: Path) -> Path:
    """Put an OpenMP library where torch would have its own, and return torch's directory."""
    import torch

    (library,) = (Path(torch.__file__).parent / "lib").glob("libgomp*.so*")
    (directory / "lib").mkdir(parents=True)
    shutil.copy(library, directory / "lib")
    return directory


def mapped(environment: dict[str, str]) -> tuple[str, str]:
    read = "print(open('/proc/self/maps').read())"
    result = subprocess.run(
        [sys.executable, "-S", "-c", read], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    return result.stdout, result.stderr


def test_openmp_is_preloaded_from_a_directory_with_spaces(tmp_path: Path) -> None:
    torch = openmp_below(tmp_path / "a place" / "torch")
    maps, complaints = mapped({**os.environ, **cpu_build_variables(os.environ, torch)})
    assert str(torch / "lib" / "libgomp") in maps
    assert complaints == ""


def test_elsewhere_preloading_is_left_to_vllm(tmp_path: Path) -> None:
    assert cpu_build_variables({}, openmp_below(tmp_path / "torch")) == {"TORCHDYNAMO_DISABLE": "1"}


def test_what_the_user_preloads_is_kept(tmp_path: Path) -> None:
    torch = openmp_below(tmp_path / "a place" / "torch")
    variables = cpu_build_variables({"LD_PRELOAD": "libfast.so", "LD_LIBRARY_PATH": "/fast"}, torch)
    assert variables["LD_PRELOAD"].split(":")[0] == "libfast.so"
    assert variables["LD_LIBRARY_PATH"].split(":") == [str(torch / "lib"), "/fast"]
    assert "LD_PRELOAD" not in cpu_build_variables({"LD_PRELOAD": "/other/libgomp.so.1"}, torch)


def test_nothing_is_compiled(tmp_path: Path) -> None:
    check = "import torch; f = torch.compile(lambda x: x + 1, backend='inductor'); print(f(torch.ones(1)).item())"
    without_compiler = {**os.environ, "CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    environment = {**without_compiler, **cpu_build_variables(os.environ)}
    result = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, timeout=60)
    assert result.stdout == "2.0\n", result.stderr
    assert list(tmp_path.iterdir()) == []
