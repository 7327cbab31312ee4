"""Messages between the two sides: a JSON header and some bytes after it, all lengths first."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

LENGTH = struct.Struct(">I")


def pack(header: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Return a message; `header` is of JSON types."""
    text = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([LENGTH.pack(len(text)), text, *blobs])


def split(header: dict[str, Any], body: bytes) -> list[bytes]:
    """Return the blobs that follow a header."""
    blobs, start = [], 0
    for size in header["sizes"]:
        blobs.append(body[start : start + size])
        start += size
    return blobs
