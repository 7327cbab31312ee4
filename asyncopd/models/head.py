"""The language-model head at chosen rows and ids, `chunk` rows at a time, logits recomputed for the gradient.

Shapes: R rows, D hidden size, V vocabulary, K ids a row, N temperatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class HeadOutput:
    """What a loss may need of the logits; float32 or wider.

    logits_RK    logits at the requested ids
    lse_RN       logsumexp(logits / temperature) for each temperature
    entropy_R    entropy of softmax(logits / first temperature), nats; carries no gradient
    temperatures as requested
    """

    logits_RK: torch.Tensor
    lse_RN: torch.Tensor
    entropy_R: torch.Tensor
    temperatures: tuple[float, ...]

    def logp_RK(self, temperature: float) -> torch.Tensor:
        """Return log-probabilities of softmax(logits / temperature) at the requested ids."""
        column = self.temperatures.index(temperature)
        return self.logits_RK / temperature - self.lse_RN[:, column, None]


def chunked_head(
    hidden_RD: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    ids_RK: torch.Tensor,
    temperatures: tuple[float, ...],
    chunk: int,
) -> HeadOutput:
    """Apply the head; at most `chunk` rows of logits exist at once, forward and backward.

    Multiplication and sums are in float32 unless an input is wider. Gradients reach hidden states,
    weight and bias, tied or not.
    """
    logits_RK, lse_RN, entropy_R = _ChunkedHead.apply(hidden_RD, weight_VD, bias_V, ids_RK, temperatures, chunk)
    return HeadOutput(logits_RK, lse_RN, entropy_R, temperatures)


class _ChunkedHead(torch.autograd.Function):
    """Keeps the inputs and the log-normalisers; never the logits."""

    @staticmethod
    def forward(
        context: Any,
        hidden_RD: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        ids_RK: torch.Tensor,
        temperatures: tuple[float, ...],
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(hidden_RD.dtype, torch.float32)
        rows = len(hidden_RD)
        picked_RK = hidden_RD.new_empty(ids_RK.shape, dtype=dtype)
        lse_RN = hidden_RD.new_empty((rows, len(temperatures)), dtype=dtype)
        entropy_R = hidden_RD.new_empty(rows, dtype=dtype)
        wide_VD = weight_VD.to(dtype)
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            logits_CV = _logits(hidden_RD[part].to(dtype), wide_VD, bias_V)
            picked_RK[part] = logits_CV.gather(1, ids_RK[part])
            for column, temperature in enumerate(temperatures[1:], start=1):
                lse_RN[part, column] = torch.logsumexp(logits_CV / temperature, dim=-1)
            lse_RN[part, 0], entropy_R[part] = _normaliser_and_entropy(logits_CV.div_(temperatures[0]))
        context.save_for_backward(hidden_RD, weight_VD, bias_V, ids_RK, lse_RN)
        context.temperatures, context.chunk = temperatures, chunk
        context.mark_non_differentiable(entropy_R)
        return picked_RK, lse_RN, entropy_R

    @staticmethod
    def backward(context: Any, grad_picked_RK: torch.Tensor, grad_lse_RN: torch.Tensor, _: torch.Tensor) -> Any:
        hidden_RD, weight_VD, bias_V, ids_RK, lse_RN = context.saved_tensors
        dtype = lse_RN.dtype
        wide_VD = weight_VD.to(dtype)
        grad_hidden_RD = torch.empty_like(hidden_RD)
        # A head that does not train needs no gradient as large as itself.
        grad_weight_VD = torch.zeros_like(wide_VD) if context.needs_input_grad[1] else None
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=dtype)
        for start in range(0, len(hidden_RD), context.chunk):
            part = slice(start, start + context.chunk)
            hidden_CD = hidden_RD[part].to(dtype)
            logits_CV = _logits(hidden_CD, wide_VD, bias_V)
            grad_CV = _grad_logits(logits_CV, lse_RN[part], grad_lse_RN[part], context.temperatures)
            grad_CV.scatter_add_(1, ids_RK[part], grad_picked_RK[part])
            grad_hidden_RD[part] = (grad_CV @ wide_VD).to(hidden_RD.dtype)
            if grad_weight_VD is not None:
                grad_weight_VD.addmm_(grad_CV.T, hidden_CD)
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(dim=0)
        grad_bias = None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype)
        grad_weight = None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype)
        return grad_hidden_RD, grad_weight, grad_bias, None, None, None


def _logits(hidden_CD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(hidden_CD, weight_VD, None if bias_V is None else bias_V.to(weight_VD.dtype))


def _normaliser_and_entropy(scaled_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logsumexp and entropy of each row from one exponential."""
    greatest_C1 = scaled_CV.amax(dim=-1, keepdim=True)
    mass_CV = (scaled_CV - greatest_C1).exp_()
    total_C = mass_CV.sum(dim=-1)
    lse_C = greatest_C1[:, 0] + total_C.log()
    return lse_C, lse_C - mass_CV.mul_(scaled_CV).sum(dim=-1) / total_C


def _grad_logits(
    logits_CV: torch.Tensor, lse_CN: torch.Tensor, grad_lse_CN: torch.Tensor, temperatures: tuple[float, ...]
) -> torch.Tensor:
    """Return the gradient that reaches the logits through their normalisers."""
    grad_CV = logits_CV
    for column, temperature in enumerate(temperatures):
        share_CV = (logits_CV / temperature).sub_(lse_CN[:, column, None]).exp_()
        share_CV.mul_(grad_lse_CN[:, column, None] / temperature)
        grad_CV = share_CV if column == 0 else grad_CV.add_(share_CV)
    return grad_CV
