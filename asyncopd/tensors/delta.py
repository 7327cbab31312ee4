"""What changed between two tensors of one dtype: positions by their gaps, new values by their distance from the old.

Elements are compared and told apart as unsigned words, so every bit pattern (−0.0, NaN payloads) comes back exactly.
After a small step most changed weights moved by one or two units in the last place, and a few words further where
they are near zero: a distance costs two bits then, a gap a byte.

A tensor is a sequence of blocks of `BLOCK` elements, the last shorter, each coded alone so that it stays in cache:
- uint32 n, the number of changed elements; nothing follows where it is 0;
- where n is an eighth of the block or more, a bit for each element, the first lowest, set where it changed; else
  n gaps to the changed element before (from -1 for the first), less one, as tiers of 8, 16 and 32 bits;
- n distances new - old modulo the word, zigzag, less one, as tiers of 2, 8, 16 and 32 bits.
A tier holds, little endian and in order, what no tier before held, less all that those could say; its greatest
number says that the next tier goes on. Tiers of 2 bits put four numbers in a byte, the first in its lowest bits.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

# Shape suffixes: B elements of a block, N changed ones of it, L left for a tier.

BLOCK = 1 << 17
"""Elements. Part of the format."""

_COUNT = struct.Struct("<I")
_GAP_TIERS = (8, 16, 32)
_DISTANCE_TIERS = (2, 8, 16, 32)
_WORDS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_TIERS: dict[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
# The four numbers in a byte of 2-bit numbers, as bytes of a uint32.
_QUARTERS = np.array([[byte >> shift & 3 for shift in (0, 2, 4, 6)] for byte in range(256)], np.uint8).view("<u4")[:, 0]


class BadDelta(ValueError):
    """Bytes that `encode` never wrote for such a tensor."""


def words(data: np.ndarray, itemsize: int) -> np.ndarray:
    """Return flat uint8 `data` as words of `itemsize` (2 or 4) bytes, sharing memory."""
    return data.view(_WORDS[itemsize])


def encode(old: np.ndarray, new: np.ndarray, limit: int) -> bytes | None:
    """Return what changes the words `old` into `new`, and change them; b"" if they are equal.

    None, and `old` changed all the same, where that takes over `limit` bytes.
    """
    parts: list[bytes] = []
    size = 0
    changed = False
    for start in range(0, len(new), BLOCK):
        if size > limit:
            old[start:] = new[start:]
            return None
        block = _encode_block(old[start : start + BLOCK], new[start : start + BLOCK])
        changed |= len(block) > _COUNT.size
        size += len(block)
        parts.append(block)
    if size > limit:
        return None
    return b"".join(parts) if changed else b""


def apply(old: np.ndarray, data: memoryview) -> None:
    """Change the words `old` as `data`, of `encode`, says. Raises `BadDelta`, and leaves them half changed then."""
    cursor = _Cursor(data)
    for start in range(0, len(old), BLOCK):
        _apply_block(old[start : start + BLOCK], cursor)
    cursor.end()


def _encode_block(old_B: np.ndarray, new_B: np.ndarray) -> bytes:
    differs_B = np.zeros(-(-len(new_B) // 8) * 8, np.bool_)
    np.not_equal(old_B, new_B, out=differs_B[: len(new_B)])
    changed = int(np.count_nonzero(differs_B))
    if changed == 0:
        return _COUNT.pack(0)
    if _is_dense(changed, len(new_B)):
        where_N = np.flatnonzero(differs_B)
        positions = [np.packbits(differs_B, bitorder="little").tobytes()]
    else:
        where_N = _sparse_positions(differs_B)
        gap_N = where_N.copy()
        gap_N[1:] -= where_N[:-1] + 1
        positions = _put_tiers(gap_N, _GAP_TIERS)
    values_N = new_B.take(where_N)
    signed = np.dtype(f"<i{new_B.itemsize}")
    distance_N = (values_N - old_B.take(where_N)).view(signed)
    old_B[where_N] = values_N
    zigzag_N = ((distance_N << 1) ^ (distance_N >> (8 * signed.itemsize - 1))).view(new_B.dtype)
    return b"".join([_COUNT.pack(changed), *positions, *_put_tiers(zigzag_N - 1, _DISTANCE_TIERS)])


def _is_dense(changed: int, elements: int) -> bool:
    """Tell whether a bit for each element takes no more than a byte for each changed one."""
    return 8 * changed >= elements


def _sparse_positions(differs_B: np.ndarray) -> np.ndarray:
    """Return where `differs_B` is true, ascending; what is false is skipped eight at a time."""
    eights = differs_B.view(np.uint64)
    touched = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[touched].view(np.bool_))
    return (touched[inside >> 3] << 3) + (inside & 7)


def _apply_block(old_B: np.ndarray, cursor: _Cursor) -> None:
    (count,) = _COUNT.unpack(cursor.take(_COUNT.size))
    if count > len(old_B):
        raise BadDelta(f"{count} changes in a block of {len(old_B)} elements")
    if count == 0:
        return
    if _is_dense(count, len(old_B)):
        bits = np.frombuffer(cursor.take(-(-len(old_B) // 8)), np.uint8)
        where_N = np.flatnonzero(np.unpackbits(bits, count=len(old_B), bitorder="little").view(np.bool_))
        if len(where_N) != count:
            raise BadDelta(f"{len(where_N)} bits for {count} changes")
    else:
        where_N = np.cumsum(_take_tiers(cursor, count, _GAP_TIERS) + 1) - 1
        if where_N[-1] >= len(old_B):
            raise BadDelta(f"a change at {where_N[-1]} in a block of {len(old_B)} elements")
    zigzag_N = (_take_tiers(cursor, count, _DISTANCE_TIERS) + 1).astype(old_B.dtype)
    old_B[where_N] += (zigzag_N >> 1) ^ (0 - (zigzag_N & 1))


def _put_tiers(numbers_L: np.ndarray, tiers: tuple[int, ...]) -> list[bytes]:
    parts = []
    for bits in tiers:
        most = (1 << bits) - 1
        if bits == 2:
            parts.append(_pack_quarters(np.minimum(numbers_L, most)))
        else:
            parts.append(np.minimum(numbers_L, most).astype(_TIERS[bits]).tobytes())
        # An array of positions, as a mask costs twice as much.
        numbers_L = numbers_L.take(np.flatnonzero(numbers_L >= most)) - numbers_L.dtype.type(most)
        if len(numbers_L) == 0:
            break
    return parts


def _take_tiers(cursor: _Cursor, count: int, tiers: tuple[int, ...]) -> np.ndarray:
    bits, *later = tiers
    if bits == 2:
        numbers_L = _unpack_quarters(cursor.take(-(-count // 4)), count)
    else:
        numbers_L = np.frombuffer(cursor.take(count * bits // 8), _TIERS[bits]).astype(np.int64)
    if later:
        most = (1 << bits) - 1
        on_L = np.flatnonzero(numbers_L == most)
        if len(on_L):
            numbers_L[on_L] += _take_tiers(cursor, len(on_L), tuple(later))
    return numbers_L


def _pack_quarters(numbers_L: np.ndarray) -> bytes:
    padded = np.zeros(-(-len(numbers_L) // 4) * 4, np.uint8)
    padded[: len(numbers_L)] = numbers_L
    fours = padded.view("<u4")
    return (fours | fours >> 6 | fours >> 12 | fours >> 18).astype(np.uint8).tobytes()


def _unpack_quarters(data: memoryview, count: int) -> np.ndarray:
    return _QUARTERS[np.frombuffer(data, np.uint8)].view(np.uint8)[:count].astype(np.int64)


class _Cursor:
    """Takes bytes in order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> memoryview:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise BadDelta(f"it ends {count - len(taken)} bytes early")
        self._at += count
        return taken

    def end(self) -> None:
        if self._at < len(self._data):
            raise BadDelta(f"{len(self._data) - self._at} bytes are left over")
