"""MessagePack for records: typed, versionless, and free of pickle."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

Record = TypeVar("Record")


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # A name, never a pickled object: dtype.str of an object array is refused on the way back.
        return [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"records cannot carry a {type(value).__name__}")


def _decode_array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    raise TypeError(f"records cannot carry a {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def encode(record: Any) -> bytes:
    """Return the MessagePack form of a record; NumPy arrays travel as dtype, shape and bytes."""
    return _encoder.encode(record)


def decode(data: bytes, kind: type[Record]) -> Record:
    """Return the record of type `kind` held in `data`; its arrays are read-only views.

    Raises `msgspec.ValidationError` or `msgspec.DecodeError` if the bytes are not such a record.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_decode_array)
    return decoder.decode(data)
