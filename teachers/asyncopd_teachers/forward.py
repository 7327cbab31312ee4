"""The part of a torch teacher that lives in its own process: a model, and log-probs from it.

Shapes: T tokens of a pack, D hidden size, V vocabulary, R scored rows, C rows of a chunk, K entries a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncopd.models.attention import use_packed_attention
from asyncopd.models.loading import load_causal_lm
from asyncopd.models.packing import balanced_groups, pack
from asyncopd.records import ScoreRequest, Scores, Support, SupportKind, tail_of

# Logits that exist at once.
_CHUNK_ENTRIES = 1 << 24

_model: PreTrainedModel | None = None


def load(directory: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    """Make the model in `directory` this process's teacher."""
    global _model
    model = load_causal_lm(directory, dtype)
    use_packed_attention(model, "teacher.model")
    _model = model


@torch.inference_mode()
def score(requests: list[ScoreRequest], batch_tokens: int) -> list[Scores]:
    """Answer in order; a forward pass reads about `batch_tokens` tokens of sequences laid end to end."""
    assert _model is not None, "the teacher's model was not loaded in this process"
    answers: dict[int, Scores] = {}
    for kind in {(request.support, request.temperature) for request in requests}:
        alike = [index for index, r in enumerate(requests) if (r.support, r.temperature) == kind]
        # What follows the last scored id, and that id itself, changes no score.
        lengths = [int(requests[index].row_map_R.max(initial=1)) for index in alike]
        for group in balanced_groups(lengths, batch_tokens):
            members = [alike[number] for number in group]
            scored = _score_pack(_model, [requests[index] for index in members], [lengths[n] for n in group])
            answers.update(zip(members, scored, strict=True))
    return [answers[index] for index in range(len(requests))]


def _score_pack(model: PreTrainedModel, requests: list[ScoreRequest], lengths: list[int]) -> list[Scores]:
    """Score requests of one support and temperature in one forward pass."""
    device = model.device
    packed = pack([_tensor(r.context_ids_C[:length], device) for r, length in zip(requests, lengths, strict=True)])
    hidden_TD = model.base_model(
        input_ids=packed.ids_T[None],
        position_ids=packed.positions_T[None],
        boundaries=packed.boundaries,
        use_cache=False,
    ).last_hidden_state[0]
    rows_R = torch.cat(
        [start + _tensor(r.row_map_R, device) - 1 for start, r in zip(packed.boundaries, requests, strict=False)]
    )
    asked = [ids for request in requests if (ids := request.asked_ids_RK) is not None]
    asked_RK = _tensor(np.concatenate(asked), device) if asked else None
    ids_RK, logp_RK = _head(model, hidden_TD[rows_R], asked_RK, requests[0].support.width, requests[0].temperature)
    return _split(requests, ids_RK.cpu().numpy(), logp_RK.cpu().numpy())


def _head(
    model: PreTrainedModel, hidden_RD: torch.Tensor, asked_RK: torch.Tensor | None, width: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and log-probs of softmax(logits / temperature), of the `width` likeliest if none are asked."""
    head = model.get_output_embeddings()
    weight_VD, bias_V = head.weight.float(), None if head.bias is None else head.bias.float()
    ids, logps = [], []
    chunk = max(1, _CHUNK_ENTRIES // len(weight_VD))
    for start in range(0, len(hidden_RD), chunk):
        hidden_CD = hidden_RD[start : start + chunk].float()
        logits_CV = torch.nn.functional.linear(hidden_CD, weight_VD, bias_V).div_(temperature)
        normaliser_C1 = logits_CV.logsumexp(dim=-1, keepdim=True)
        if asked_RK is None:
            logits_CK, ids_CK = logits_CV.topk(width)
        else:
            ids_CK = asked_RK[start : start + chunk]
            logits_CK = logits_CV.gather(1, ids_CK)
        ids.append(ids_CK)
        logps.append((logits_CK - normaliser_C1).clamp_(max=0))
    if not ids:
        return torch.zeros((0, width), dtype=torch.int64), torch.zeros((0, width))
    return torch.cat(ids), torch.cat(logps)


def _split(requests: list[ScoreRequest], ids_RK: np.ndarray, logp_RK: np.ndarray) -> list[Scores]:
    """Give each request its rows."""
    support: Support = requests[0].support
    distinct = support.kind in (SupportKind.TEACHER_TOPK, SupportKind.STUDENT_TOPK)
    ends = np.cumsum([len(request.row_map_R) for request in requests])[:-1]
    return [
        Scores(
            support=support,
            ids_RK=ids.astype(np.int32),
            logp_RK=logp.copy(),
            tail_R=tail_of(logp) if distinct else None,
        )
        for ids, logp in zip(np.split(ids_RK, ends), np.split(logp_RK, ends), strict=True)
    ]


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)
