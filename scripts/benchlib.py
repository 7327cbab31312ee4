"""What every benchmark reports beside its figures."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from typing import Any

import psutil


def machine() -> str:
    """Describe the machine in a line."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def print_json(figures: dict[str, Any], repeats: int) -> None:
    """Print the figures as the last line, with where and how they were measured."""
    command = shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    print(json.dumps({**figures, "machine": machine(), "repeats": repeats, "command": command}))
