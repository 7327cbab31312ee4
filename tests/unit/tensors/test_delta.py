"""The codec of one tensor: any bit pattern comes back, and nothing else is taken for a delta."""

from __future__ import annotations

import contextlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncopd.tensors import delta
from asyncopd.tensors.delta import BLOCK, BadDelta, apply, encode

NO_LIMIT = 1 << 40


def restored(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Encode, check what encoding leaves behind, and apply."""
    led, followed = old.copy(), old.copy()
    data = encode(led, new, NO_LIMIT)
    assert data is not None
    assert np.array_equal(led, new)
    assert (data == b"") == np.array_equal(old, new)
    if data:
        apply(followed, memoryview(data))
    return followed


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Words of either size before and after: near and far changes, from none to all."""
    dtype = draw(st.sampled_from([np.dtype("<u2"), np.dtype("<u4")]))
    most = int(np.iinfo(dtype).max)
    old = np.frombuffer(draw(st.binary(max_size=320).map(lambda data: data[: len(data) & ~3])), dtype)
    distance = st.one_of(st.integers(-3, 3), st.integers(-400, 400), st.integers(0, most))
    new = old.copy()
    if len(old):
        share = draw(st.sampled_from([0.0, 0.1, 1.0]))
        moved = np.random.default_rng(draw(st.integers(0, 99))).random(len(old)) < share
        distances = draw(st.lists(distance, min_size=1, max_size=5))
        for count, index in enumerate(np.flatnonzero(moved)):
            new[index] = (int(new[index]) + distances[count % len(distances)]) & most
    return old, new


@settings(max_examples=200, deadline=None)
@given(pairs(), st.sampled_from([8, 24, 100, BLOCK]))
def test_whatever_changed_comes_back_bit_for_bit(pair: tuple[np.ndarray, np.ndarray], block: int) -> None:
    old, new = pair
    with mock.patch.object(delta, "BLOCK", block):
        assert np.array_equal(restored(old, new), new)


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("share", [0.0, 1e-5, 0.003, 0.02, 0.5, 1.0])
def test_a_tensor_of_many_blocks_comes_back(dtype: str, share: float) -> None:
    random = np.random.default_rng(0)
    old = random.integers(0, np.iinfo(dtype).max, 2 * BLOCK + 77, dtype)
    new = np.where(random.random(len(old)) < share, random.integers(0, np.iinfo(dtype).max, len(old), dtype), old)
    assert np.array_equal(restored(old, new), new)


def test_gaps_and_distances_of_every_size_come_back() -> None:
    old = np.zeros(2 * BLOCK, "<u4")
    new = old.copy()
    gaps = [1, 2, 254, 255, 256, 257, 65790, 65791, 65792]
    distances = [1, -1, 2, -2, 3, 127, 128, -129, 130, 32896, 32897, -32898, 2**31 - 1, -(2**31), 2**31 - 5]
    position = -1
    for gap in gaps:
        position += gap
        new[position] = 1
    new[-len(distances) :] = np.array(distances, "<i4").view("<u4")
    assert np.array_equal(restored(old, new), new)


def test_small_steps_cost_what_the_format_says() -> None:
    old = np.full(BLOCK, 1000, "<u2")
    new = old.copy()
    new[::50] += 1
    changed = len(new[::50])
    assert len(encode(old, new, NO_LIMIT)) == 4 + changed + -(-changed // 4)  # a count, a byte and two bits for each


@pytest.mark.parametrize("elements", [64, 77])
def test_many_changes_cost_a_bit_for_each_element(elements: int) -> None:
    old = np.zeros(elements, "<u2")
    for changed in range(1, elements + 1):
        new = old.copy()
        new[elements - changed :] = 1
        positions = changed if changed * 8 < elements else -(-elements // 8)
        assert len(encode(old.copy(), new, NO_LIMIT)) == 4 + positions + -(-changed // 4)
        assert np.array_equal(restored(old, new), new)


def test_what_is_too_long_is_given_up_and_copied_all_the_same() -> None:
    random = np.random.default_rng(0)
    for blocks in (0.5, 3.5):
        old = random.integers(0, 2**16, int(blocks * BLOCK), np.uint16)
        new = random.integers(0, 2**16, len(old), np.uint16)
        size = len(encode(old.copy(), new, NO_LIMIT))
        assert len(encode(old.copy(), new, size)) == size
        for limit in (size - 1, size // 2, 0):
            led = old.copy()
            assert encode(led, new, limit) is None
            assert np.array_equal(led, new)


def test_a_delta_that_cannot_be_is_refused() -> None:
    old = np.zeros(100, "<u2")
    new = np.arange(100, dtype="<u2")
    new[20] = 0
    data = encode(old.copy(), new, NO_LIMIT)
    for wrong, what in [
        (data[:-1], "ends 1 bytes early"),
        (data + b"x", "1 bytes are left over"),
        (b"", "ends 4 bytes early"),
        (b"\x65" + data[1:], "101 changes in a block of 100 elements"),
        (data[:4] + bytes([data[4] ^ 2]) + data[5:], "97 bits for 98 changes"),
        (b"\x01\0\0\0\x64\x00", "a change at 100 in a block of 100 elements"),
    ]:
        with pytest.raises(BadDelta, match=what):
            apply(old.copy(), memoryview(wrong))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["<u2", "<u4"]))
def test_no_bytes_reach_beyond_the_tensor(data: bytes, dtype: str) -> None:
    guarded = np.zeros(70, dtype)
    with contextlib.suppress(BadDelta):
        apply(guarded[20:50], memoryview(data))
    assert not guarded[:20].any() and not guarded[50:].any()
