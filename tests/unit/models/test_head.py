"""The chunked head against full logits.

Shapes: R rows, D hidden size, V vocabulary, K ids.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from asyncopd.models.head import chunked_head

R, D, V, K = 37, 8, 50, 6
TEMPERATURES = (0.7, 1.0)


def inputs(dtype: torch.dtype = torch.float64, bias: bool = True):
    generator = torch.Generator().manual_seed(0)
    hidden_RD = torch.randn(R, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight_VD = torch.randn(V, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    bias_V = torch.randn(V, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    # With repeats in a row, whose gradients must add up.
    ids_RK = torch.randint(V, (R, K), generator=generator)
    ids_RK[:, 1] = ids_RK[:, 0]
    return hidden_RD, weight_VD, bias_V, ids_RK


def loss_of(first_RK, second_RK):
    return (first_RK.exp() * second_RK.detach() + second_RK).sum()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, R, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_chunked_equals_full_logits_in_value_and_gradient(chunk, bias, dtype, tolerance):
    hidden_RD, weight_VD, bias_V, ids_RK = inputs(dtype, bias)
    leaves = [leaf for leaf in (hidden_RD, weight_VD, bias_V) if leaf is not None]
    output = chunked_head(hidden_RD, weight_VD, bias_V, ids_RK, TEMPERATURES, chunk)
    logits_RV = torch.nn.functional.linear(hidden_RD, weight_VD, bias_V).double()
    full = [(logits_RV / t).log_softmax(-1).gather(1, ids_RK) for t in TEMPERATURES]
    ours = [output.logp_RK(t) for t in TEMPERATURES]
    for mine, reference in zip(ours, full, strict=True):
        assert torch.allclose(mine.double(), reference, atol=tolerance, rtol=tolerance)
    gradients = torch.autograd.grad(loss_of(*ours), leaves)
    for mine, reference in zip(gradients, torch.autograd.grad(loss_of(*full), leaves), strict=True):
        assert torch.allclose(mine, reference, atol=tolerance * reference.abs().max(), rtol=tolerance)


def test_entropy_is_that_of_the_first_temperature():
    hidden_RD, weight_VD, bias_V, ids_RK = inputs()
    output = chunked_head(hidden_RD, weight_VD, bias_V, ids_RK, TEMPERATURES, 5)
    logp_RV = (torch.nn.functional.linear(hidden_RD, weight_VD, bias_V) / TEMPERATURES[0]).log_softmax(-1)
    assert torch.allclose(output.entropy_R, -(logp_RV.exp() * logp_RV).sum(-1), atol=1e-10)
    assert not output.entropy_R.requires_grad


def test_half_precision_inputs_are_multiplied_in_float32():
    hidden_RD, weight_VD, bias_V, ids_RK = inputs(torch.bfloat16)
    output = chunked_head(hidden_RD, weight_VD, bias_V, ids_RK, (1.0,), 5)
    reference_RV = torch.nn.functional.linear(hidden_RD.float(), weight_VD.float(), bias_V.float()).log_softmax(-1)
    assert output.logits_RK.dtype == torch.float32
    assert torch.allclose(output.logp_RK(1.0), reference_RV.gather(1, ids_RK), atol=1e-5)
    (gradient,) = torch.autograd.grad(output.logp_RK(1.0).sum(), hidden_RD)
    assert gradient.dtype == torch.bfloat16


class Largest(TorchDispatchMode):
    """Remembers the most rows that a tensor as wide as the vocabulary had."""

    rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.ndim == 2 and result.shape[1] == V:
            self.rows = max(self.rows, result.shape[0])
        return result


def test_no_more_rows_of_logits_than_a_chunk_ever_exist():
    hidden_RD, weight_VD, bias_V, ids_RK = inputs()
    with Largest() as largest:
        output = chunked_head(hidden_RD, weight_VD, bias_V, ids_RK, TEMPERATURES, 9)
        output.logp_RK(1.0).sum().backward()
    assert largest.rows == 9


def test_no_rows_give_no_log_probabilities():
    hidden_RD, weight_VD, bias_V, ids_RK = inputs()
    output = chunked_head(hidden_RD[:0], weight_VD, bias_V, ids_RK[:0], (1.0,), 9)
    assert output.logp_RK(1.0).shape == (0, K)


def test_a_frozen_head_gets_no_gradient_and_passes_on_the_same():
    """An adapter's learner must not make a gradient as large as the head."""
    torch.manual_seed(0)
    hidden_RD = torch.randn(7, 5, dtype=torch.float64)
    weight_VD = torch.randn(11, 5, dtype=torch.float64)
    ids_RK = torch.randint(0, 11, (7, 3))
    gradients = []
    for trains in (True, False):
        hidden, weight = hidden_RD.clone().requires_grad_(), weight_VD.clone().requires_grad_(trains)
        chunked_head(hidden, weight, None, ids_RK, (0.7,), 3).logp_RK(0.7).sum().backward()
        gradients.append(hidden.grad)
        assert (weight.grad is not None) == trains
    assert torch.equal(*gradients)
