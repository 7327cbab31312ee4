"""Where figures and conversations are written while a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class JsonLines:
    """One JSON object a line, readable as soon as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._file.close()
