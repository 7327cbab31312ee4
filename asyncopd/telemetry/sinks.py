"""Where figures and conversations are written while a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class JsonLines:
    """One JSON object a line, readable as soon as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()
