"""Packed arrays come back: ids exactly, log-probs within the stated error, whatever their size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from asyncopd.scoring.cache.packing import (
    STEP_8,
    STEP_16,
    pack_falling,
    pack_ids,
    pack_steps,
    packed_id_bytes,
    unpack_falling,
    unpack_ids,
    unpack_steps,
)

LOGP = st.one_of(
    st.floats(-20, 0, width=32),
    st.floats(-600, 0, width=32),
    st.floats(max_value=0, allow_nan=False, allow_infinity=True, width=32),
)


@given(st.integers(1, 31), st.integers(0, 40), st.data())
def test_ids_of_any_width_come_back_in_that_many_bits(bits: int, count: int, data: st.DataObject) -> None:
    ids_N = data.draw(arrays.arrays(np.int32, count, elements=st.integers(0, 2**bits - 1)))
    packed = pack_ids(ids_N, bits)
    assert len(packed) == packed_id_bytes(count, bits) <= count * bits / 8 + 7
    back = unpack_ids(memoryview(packed), count, bits)
    assert back.dtype == np.int32 and np.array_equal(back, ids_N)


@given(arrays.arrays(np.float32, st.integers(0, 40), elements=LOGP))
def test_sixteen_bits_err_by_half_a_step_and_keep_what_they_cannot_count(logp_N: np.ndarray) -> None:
    data, beside = pack_steps(logp_N, STEP_16)
    assert len(data) == 2 * len(logp_N)
    back = unpack_steps(memoryview(data), memoryview(beside), STEP_16)
    assert back.dtype == np.float32
    far_N = logp_N < -63.998
    assert np.abs(back[~far_N] - logp_N[~far_N]).max(initial=0) <= STEP_16 / 2
    assert np.array_equal(back[logp_N < -64], logp_N[logp_N < -64])


@given(arrays.arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 9)), elements=LOGP))
def test_eight_bits_err_by_half_a_step_on_falling_rows(logp_RK: np.ndarray) -> None:
    logp_RK = -np.sort(-logp_RK, axis=1)
    parts = [memoryview(part) for part in pack_falling(logp_RK)]
    back_RK = unpack_falling(*parts).reshape(logp_RK.shape)
    near_RK = logp_RK > -511
    assert np.abs(back_RK[near_RK] - logp_RK[near_RK]).max(initial=0) <= STEP_8 / 2
    assert np.array_equal(back_RK[logp_RK < -512], logp_RK[logp_RK < -512])
    assert (np.diff(back_RK[near_RK.all(axis=1)], axis=1) <= 0).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_rows_that_rise_come_back_too(rows: int) -> None:
    logp_RK = np.tile(np.array([-3, -1, -2], np.float32), (rows, 1))
    back = unpack_falling(*(memoryview(part) for part in pack_falling(logp_RK)))
    assert np.array_equal(back.reshape(logp_RK.shape), logp_RK)
