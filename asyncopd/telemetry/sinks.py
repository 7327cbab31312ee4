"""Where figures and conversations are written while a run goes on."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncopd.errors import UserError


class JsonLines:
    """One JSON object a line, readable as soon as it is written; a line that a crash or a full disk tore is dropped."""

    def __init__(self, path: Path) -> None:
        """Append to the file at `path`. Raises `UserError` if it cannot be written."""
        self._path = path
        self._open()

    def _open(self) -> None:
        try:
            self._file = self._path.open("a+b", buffering=0)
            self._file.seek(0)
            self._length = self._file.read().rfind(b"\n") + 1
            self._file.truncate(self._length)
        except OSError as error:
            raise self._refusal(error) from None

    def write(self, record: dict[str, Any]) -> None:
        """Raises `UserError` if the disk refuses."""
        line = _line(record)
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.truncate(self._length)
            raise self._refusal(error) from None
        self._length += len(line)

    def read(self) -> list[dict[str, Any]]:
        """Return what was written, also before this file was opened."""
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]

    def rewrite(self, records: Sequence[dict[str, Any]]) -> None:
        """Let the file hold `records` alone. Raises `UserError` if the disk refuses."""
        kept = b"".join(_line(record) for record in records)
        if len(kept) < self._length:
            partial = self._path.with_suffix(".partial")
            try:
                partial.write_bytes(kept)
                partial.replace(self._path)
            except OSError as error:
                raise self._refusal(error) from None
            self.close()
            self._open()

    def _refusal(self, error: OSError) -> UserError:
        return UserError(str(self._path), f"cannot be written ({error.strerror})", "make room for it, then resume")

    def close(self) -> None:
        self._file.close()


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
