"""The one forward pass that every need of an objective is met from.

Shapes: T packed tokens, R trained rows of all members, K support entries, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncopd.learner.member import Member, joined
from asyncopd.models.attention import use_packed_attention
from asyncopd.models.head import chunked_head
from asyncopd.models.packing import pack
from asyncopd.objectives.context import Context


@dataclass(frozen=True)
class ForwardOutput:
    """Log-probabilities of a micro-batch, with gradient.

    logp_R     of the generated tokens, at the sampling temperature
    logp_RK    at the support's ids, at the distillation temperature
    entropy_R  of the learner at the sampling temperature, without gradient
    """

    members: Sequence[Member]
    logp_R: torch.Tensor
    logp_RK: torch.Tensor
    entropy_R: torch.Tensor

    def logp_per_member(self) -> list[np.ndarray]:
        """Return the generated tokens' log-probabilities, an array a member."""
        lengths = [len(member) for member in self.members]
        return [part.numpy() for part in self.logp_R.detach().cpu().split(lengths)]

    def context(self, weights: Sequence[float]) -> Context:
        """Return what the objective sees, given each member's freshness weight."""
        device = self.logp_R.device
        weight_R = [np.full(len(member), weight) for member, weight in zip(self.members, weights, strict=True)]
        return Context(
            logp_R=self.logp_R,
            behaviour_R=joined([member.behaviour_R for member in self.members], device),
            lag_R=joined([member.lag_R for member in self.members], device),
            freshness_R=joined(weight_R, device).to(self.logp_R.dtype),
            logp_RK=self.logp_RK,
            teacher_RK=joined([member.teacher_RK for member in self.members], device),
            teacher_tail_R=joined([member.teacher_tail_R for member in self.members], device),
            behaviour_RK=joined([member.behaviour_RK for member in self.members], device),
        )


class Forward:
    """Computes a micro-batch of members as one packed row, and the head at trained rows only."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        distill_temperature: float,
        head_chunk: int,
        dtype: torch.dtype,
    ) -> None:
        use_packed_attention(model, "student.model")
        self._model = model
        self._temperature = temperature
        self._distill_temperature = distill_temperature
        self._head_chunk = head_chunk
        self._dtype = dtype

    def __call__(self, members: Sequence[Member]) -> ForwardOutput:
        device = self._model.device
        hidden_RD = self._hidden(members, device)
        ids_RK = torch.cat(
            [
                joined([member.targets_R for member in members], device)[:, None],
                joined([member.support_ids_RK for member in members], device),
            ],
            dim=1,
        )
        head = self._model.get_output_embeddings()
        temperatures = tuple(dict.fromkeys((self._temperature, self._distill_temperature)))
        output = chunked_head(hidden_RD, head.weight, head.bias, ids_RK, temperatures, self._head_chunk)
        return ForwardOutput(
            members=members,
            logp_R=output.logp_RK(self._temperature)[:, 0],
            logp_RK=output.logp_RK(self._distill_temperature)[:, 1:],
            entropy_R=output.entropy_R,
        )

    def _hidden(self, members: Sequence[Member], device: torch.device) -> torch.Tensor:
        """Return the last hidden states that predict the trained rows."""
        row = pack([torch.from_numpy(member.ids_T).to(device) for member in members])
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
            hidden_1TD = self._model.base_model(
                input_ids=row.ids_T[None],
                position_ids=row.positions_T[None],
                boundaries=row.boundaries,
                use_cache=False,
            ).last_hidden_state
        starts = zip(members, row.boundaries, strict=False)
        return hidden_1TD[0, joined([start + member.rows_R - 1 for member, start in starts], device)]
