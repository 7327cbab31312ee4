"""The arrays of a stored answer in few bytes: ids in the bits they need, log-probs in fixed point.

An id's whole bytes lie in byte planes and its other bits in bit planes, so that any width is a few passes over the
array. A log-prob is a number of steps below 0; the few that no number holds are kept beside, exactly.

Shapes: N ids or log-probs in any order, R rows, K entries a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STEP_16 = 2.0**-10
"""Nats of a step in 16 bits; rounding errs by half of it, 4.9e-4, at most."""

STEP_8 = 2.0**-7
"""Nats of a step in 8 bits; rounding errs by half of it, 3.9e-3, at most."""

_U2: np.dtype[Any] = np.dtype("<u2")
_U4: np.dtype[Any] = np.dtype("<u4")
_F4: np.dtype[Any] = np.dtype("<f4")
# What a step count never is: its log-prob lies beside.
_BESIDE = 2**16 - 1
# Below every range, and no number that overflows when it is counted in steps.
_FAR = np.float32(-1e6)
# What a difference never is: it is too great, and the step count itself lies beside.
_JUMP = 2**8 - 1


def pack_ids(ids_N: np.ndarray, bits: int) -> bytes:
    """Return ids in [0, 2^bits) in `bits` bits each, up to a padding of at most seven bytes; `bits` is 1 to 32."""
    bytes_N4 = np.ascontiguousarray(ids_N, _U4).view(np.uint8).reshape(-1, 4)
    if bits == 16:
        return bytes_N4.view(_U2).reshape(-1, 2)[:, 0].tobytes()
    whole, rest = divmod(bits, 8)
    planes = [bytes_N4[:, byte].tobytes() for byte in range(whole)]
    planes += [np.packbits(bytes_N4[:, whole] >> bit & 1).tobytes() for bit in range(rest)]
    return b"".join(planes)


def unpack_ids(data: memoryview, count: int, bits: int) -> np.ndarray:
    """Return the int32 ids that `pack_ids` made `data` of."""
    if bits == 16:
        return np.frombuffer(data, _U2, count).astype(np.int32)
    whole, rest = divmod(bits, 8)
    bytes_N4 = np.zeros((count, 4), np.uint8)
    for byte in range(whole):
        bytes_N4[:, byte] = np.frombuffer(data, np.uint8, count, offset=byte * count)
    plane_bytes = -(-count // 8)
    for bit in range(rest):
        plane = np.frombuffer(data, np.uint8, plane_bytes, offset=whole * count + bit * plane_bytes)
        bytes_N4[:, whole] |= np.unpackbits(plane, count=count) << bit
    return bytes_N4.view(_U4)[:, 0].astype(np.int32)


def packed_id_bytes(count: int, bits: int) -> int:
    """Return the length of what `pack_ids` returns."""
    whole, rest = divmod(bits, 8)
    return count * whole + rest * -(-count // 8)


def pack_steps(logp_N: np.ndarray, step: float) -> tuple[bytes, bytes]:
    """Return log-probs of at most 0 as 16-bit numbers of steps, and the float32 ones that lie below their range."""
    steps_N = np.rint(logp_N.clip(_FAR) * np.float32(-1 / step))
    beside_N = ~(steps_N < _BESIDE)
    steps_N[beside_N] = _BESIDE
    return steps_N.astype(_U2).tobytes(), logp_N[beside_N].astype(_F4).tobytes()


def unpack_steps(data: memoryview, beside: memoryview, step: float) -> np.ndarray:
    """Return the float32 log-probs that `pack_steps` made its pair of."""
    steps_N = np.frombuffer(data, _U2)
    logp_N = steps_N * np.float32(-step)
    logp_N[steps_N == _BESIDE] = np.frombuffer(beside, _F4)
    return logp_N


def pack_falling(logp_RK: np.ndarray) -> tuple[bytes, bytes, bytes]:
    """Return rows of falling log-probs as 8-bit differences of `STEP_8` steps, and what is too great for them.

    The second are the first entry of each row and every entry far below the one before, as `pack_steps` writes
    them, in order; the third what lies beside those.
    """
    steps_RK = np.rint(logp_RK.clip(_FAR) * np.float32(-1 / STEP_8)).clip(0, _BESIDE).astype(np.int32)
    differences_RK = np.full_like(steps_RK, _JUMP)
    np.subtract(steps_RK[:, 1:], steps_RK[:, :-1], out=differences_RK[:, 1:])
    jump_RK = (differences_RK < 0) | (differences_RK >= _JUMP) | (steps_RK == _BESIDE)
    differences_RK[jump_RK] = _JUMP
    return differences_RK.astype(np.uint8).tobytes(), *pack_steps(logp_RK[jump_RK], STEP_8)


def unpack_falling(differences: memoryview, jumps: memoryview, beside: memoryview) -> np.ndarray:
    """Return the float32 log-probs, row after row, that `pack_falling` made its three parts of."""
    differences_N = np.frombuffer(differences, np.uint8)
    places = np.flatnonzero(differences_N == _JUMP)
    jumps_J = np.frombuffer(jumps, _U2).astype(np.int32)
    steps_N = differences_N.astype(np.int32)
    steps_N[places] = 0
    np.cumsum(steps_N, out=steps_N)
    steps_N += np.repeat(jumps_J - steps_N[places], np.diff(places, append=len(steps_N)))
    logp_N = steps_N.astype(np.float32) * np.float32(-STEP_8)
    logp_N[places[jumps_J == _BESIDE]] = np.frombuffer(beside, _F4)
    return logp_N
