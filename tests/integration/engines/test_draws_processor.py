"""The draws processor on batches as vLLM updates them, without an engine."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from asyncopd.engines.draws import Order
from asyncopd.engines.vllm.draws import DrawsProcessor
from asyncopd.records import Draws

pytestmark = pytest.mark.integration

VOCABULARY = 50


def parameters(key: str, start: int = 0, max_tokens: int = 9, iid: int = 2, **sampling: Any) -> SamplingParams:
    order = msgspec.to_builtins(Order(key, 7, start, iid=iid))
    return SamplingParams(max_tokens=max_tokens, extra_args={"asyncopd": order}, **sampling)


@pytest.fixture
def processor() -> DrawsProcessor:
    return DrawsProcessor(cast(VllmConfig, None), torch.device("cpu"), False)


def update(processor: DrawsProcessor, added=(), removed=(), moved=()) -> None:
    processor.update_state(BatchUpdate(batch_size=3, removed=removed, added=added, moved=moved))


def step(processor: DrawsProcessor, outputs: list[list[int]], seed: int = 0) -> torch.Tensor:
    """Sample a token for each row of the batch, from logits that differ by row."""
    generator = torch.Generator().manual_seed(seed)
    logits_BV = torch.randn(len(outputs), VOCABULARY, generator=generator)
    assert processor.apply(logits_BV.clone()).equal(logits_BV)
    for output_ids in outputs:
        output_ids.append(0)
    return logits_BV


def taken(processor: DrawsProcessor, key: str) -> Draws:
    return processor.take([key])[key]


def test_nothing_changes_and_requests_without_an_order_are_left_alone(processor):
    plain: list[int] = []
    update(processor, added=[(0, SamplingParams(), None, plain)])
    step(processor, [plain])
    assert processor.is_argmax_invariant() and processor.take([""]) == {}


def test_rows_follow_their_request_through_moves_and_swaps(processor):
    outputs: dict[str, list[int]] = {key: [] for key in "abc"}
    update(processor, added=[(row, parameters(key), None, outputs[key]) for row, key in enumerate("abc")])
    expected = []
    for change, order in [({}, "abc"), ({"moved": [(0, 2, MoveDirectionality.SWAP)]}, "cba")]:
        update(processor, **change)
        logits_BV = step(processor, [outputs[key] for key in order], seed=len(expected))
        expected.append(dict(zip(order, logits_BV.log_softmax(-1), strict=True)))
    update(processor, removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)])
    expected.append(dict(zip("ab", step(processor, [outputs["a"], outputs["b"]], seed=9).log_softmax(-1), strict=True)))
    for key, rows in [("a", 3), ("b", 3), ("c", 2)]:
        draws = taken(processor, key)
        logp_RV = torch.stack([at[key] for at in expected[:rows]]).numpy()
        np.testing.assert_allclose(
            draws.iid_logp_RM, np.take_along_axis(logp_RV, draws.iid_ids_RM.astype(np.int64), 1), atol=1e-6
        )


def test_a_preempted_request_goes_on_where_it_was(processor):
    output: list[int] = []
    update(processor, added=[(0, parameters("a"), None, output)])
    step(processor, [output], 0)
    step(processor, [output], 1)
    update(processor, removed=[0])
    update(processor, added=[(0, parameters("a"), None, output)])
    step(processor, [output], 2)
    whole = taken(processor, "a")
    alone: list[int] = []
    update(processor, removed=[0])
    update(processor, added=[(0, parameters("b"), None, alone)])
    for seed in range(3):
        step(processor, [alone], seed)
    np.testing.assert_array_equal(whole.iid_ids_RM, taken(processor, "b").iid_ids_RM)


def test_a_position_that_is_sampled_again_is_drawn_again(processor):
    output: list[int] = []
    update(processor, added=[(0, parameters("a"), None, output)])
    for seed in range(3):
        step(processor, [output], seed)
    del output[1:]
    logits_1V = step(processor, [output], 8)
    draws = taken(processor, "a")
    assert draws.count == 2
    expected = logits_1V.log_softmax(-1)[0, draws.iid_ids_RM[1].astype(np.int64)]
    np.testing.assert_allclose(draws.iid_logp_RM[1], expected, atol=1e-6)


def test_the_numbers_of_a_resumed_turn_are_those_of_its_later_positions(processor):
    output: list[int] = []
    update(processor, added=[(0, parameters("a"), None, output)])
    for _ in range(4):
        step(processor, [output], 0)
    later: list[int] = []
    update(processor, removed=[0])
    update(processor, added=[(0, parameters("b", start=3), None, later)])
    step(processor, [later], 0)
    np.testing.assert_array_equal(taken(processor, "b").iid_ids_RM[0], taken(processor, "a").iid_ids_RM[3])


def test_a_long_request_keeps_all_its_rows(processor):
    output: list[int] = []
    update(processor, added=[(0, parameters("a", max_tokens=100), None, output)])
    logp = [step(processor, [output], seed).log_softmax(-1)[0] for seed in range(100)]
    draws = taken(processor, "a")
    expected = np.take_along_axis(torch.stack(logp).numpy(), draws.iid_ids_RM.astype(np.int64), 1)
    np.testing.assert_allclose(draws.iid_logp_RM, expected, atol=1e-6)


def test_a_token_past_the_end_is_not_kept(processor):
    output: list[int] = []
    update(processor, added=[(0, parameters("a", max_tokens=2), None, output)])
    for seed in range(3):
        step(processor, [output], seed)
    assert taken(processor, "a").count == 2


def test_what_is_taken_is_forgotten_also_while_it_is_in_the_batch(processor):
    output: list[int] = []
    update(processor, added=[(0, parameters("a"), None, output)])
    step(processor, [output])
    assert processor.take(["a", "unknown"]).keys() == {"a"}
    step(processor, [output])
    update(processor, removed=[0])
    assert processor.take(["a"]) == {}
    assert not processor._batch and not processor._kept and not processor._left


def test_of_what_nobody_asks_for_only_the_newest_are_kept(processor):
    update(processor, added=[(0, parameters("first"), None, [])])
    processor._limit = 16 * processor._kept["first"].nbytes
    for number in range(100):
        update(processor, added=[(0, parameters(str(number)), None, [])])
        step(processor, [[]])
    assert len(processor._left) == 16
    update(processor, removed=[0])
    assert processor.take(map(str, range(100))).keys() == set(map(str, range(84, 100)))
    assert not processor._kept and not processor._left


def test_a_request_forgotten_while_it_waited_has_no_draws_of_its_start(processor):
    waiting: list[int] = []
    processor._limit = 0
    update(processor, added=[(0, parameters("a"), None, waiting)])
    step(processor, [waiting])
    update(processor, removed=[0])
    update(processor, added=[(0, parameters("a"), None, waiting)])
    step(processor, [waiting])
    assert taken(processor, "a").count == 0


@pytest.mark.parametrize("cut", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}])
def test_draws_of_another_distribution_than_the_sampled_one_are_refused(cut):
    with pytest.raises(ValueError, match="a whole distribution"):
        DrawsProcessor.validate_params(parameters("a", **cut))
    DrawsProcessor.validate_params(parameters("a", iid=0, **cut))
    DrawsProcessor.validate_params(SamplingParams(**cut))
