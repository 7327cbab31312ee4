"""What every benchmark reports beside its figures."""

from __future__ import annotations

import json
import os
import platform
import shlex
from typing import Any

import psutil


def machine() -> str:
    """Describe the machine in a line."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def json_line(figures: dict[str, Any], repeats: int, command: list[str]) -> str:
    """Return the figures as one line of JSON, with where and how they were measured."""
    return json.dumps({**figures, "machine": machine(), "repeats": repeats, "command": shlex.join(command)})


def lines(figures: dict[str, Any], prefix: str = "") -> list[str]:
    """Return `name: figure` lines; what lies deeper is named with dots."""
    said: list[str] = []
    for name, figure in figures.items():
        if isinstance(figure, dict):
            said += lines(figure, f"{prefix}{name}.")
        else:
            said.append(f"{prefix}{name}: {_rounded(figure)}")
    return said


def _rounded(figure: Any) -> str:
    if isinstance(figure, float):
        return f"{figure:.4g}" if abs(figure) < 1000 else f"{figure:,.0f}"
    if isinstance(figure, list):
        return ", ".join(map(_rounded, figure))
    return str(figure)
