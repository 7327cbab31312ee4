"""What every benchmark script prints at its end."""

from __future__ import annotations

import os
import sys
from typing import Any

from asyncopd.bench.report import json_line


def print_json(figures: dict[str, Any], repeats: int) -> None:
    """Print the figures as the last line, with where and how they were measured."""
    print(json_line(figures, repeats, ["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]))
