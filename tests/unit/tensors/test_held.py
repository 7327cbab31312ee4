from __future__ import annotations

import pytest
import torch
import xxhash

from asyncopd.records import Version
from asyncopd.tensors.held import Held, flat_size
from asyncopd.tensors.mapped import raw_bytes

TENSORS = [
    ("odd.weight", torch.randn(7).bfloat16()),
    ("next.weight", torch.randn(5, 3)),
    ("transposed.weight", torch.randn(4, 6).T),
    ("scale", torch.tensor(1.5)),
]


def test_a_copy_is_bitwise_whatever_the_learner_does_later() -> None:
    held = Held()
    tensors = [(name, tensor.clone()) for name, tensor in TENSORS]
    held.take(Version(0, 1), tensors)
    for _, tensor in tensors:
        tensor.zero_()
    for (name, tensor), (found_name, found) in zip(TENSORS, held.tensors(), strict=True):
        assert name == found_name
        assert torch.equal(found, tensor)
    assert held.has(Version(0, 1))
    assert not held.has(Version(0, 2))
    assert not held.has(Version(1, 1))


def test_what_is_announced_has_the_checksum_of_the_tensors_in_order() -> None:
    held = Held()
    held.take(Version(0, 1), TENSORS)
    hasher = xxhash.xxh3_64()
    for name, tensor in TENSORS:
        hasher.update(raw_bytes(name, tensor).data)
    weights = held.weights("gloo://there")
    assert (weights.path, weights.checksum, weights.dense_checksum) == ("gloo://there", *[hasher.intdigest()] * 2)
    assert len(held.flat_N) == flat_size(weights)


def test_the_next_version_takes_the_place_of_the_last() -> None:
    held = Held()
    held.take(Version(0, 1), TENSORS)
    where = held.flat_N.data_ptr()
    held.take(Version(0, 2), [(name, tensor + 1) for name, tensor in TENSORS])
    assert held.flat_N.data_ptr() == where
    assert not held.has(Version(0, 1))
    assert torch.equal(dict(held.tensors())["scale"], torch.tensor(2.5))


def test_a_dtype_that_cannot_be_published_is_named_and_nothing_is_held() -> None:
    held = Held()
    held.take(Version(0, 1), TENSORS)
    with pytest.raises(ValueError, match=r"half is torch\.float16"):
        held.take(Version(0, 2), [("half", torch.zeros(3, dtype=torch.float16))])
    assert not held.has(Version(0, 1))
    assert not held.has(Version(0, 2))
