"""The teacher's numbers are those of a plain pass with full logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncopd.records import ScoreRequest, Scores, Support, SupportKind
from asyncopd_teachers import forward

LENGTHS = (3, 40, 17, 9, 100, 4)
TOLERANCE = 1e-5


def requests(support: Support, temperature: float, lengths: Sequence[int] = LENGTHS) -> list[ScoreRequest]:
    random = np.random.default_rng(0)
    made = []
    for length in lengths:
        ids_C = random.integers(0, 90, length).astype(np.int32)
        rows_R = np.sort(random.choice(np.arange(1, length), max(1, length // 3), replace=False)).astype(np.int32)
        given = support.kind in (SupportKind.STUDENT_TOPK, SupportKind.DRAWS)
        made.append(
            ScoreRequest(
                context_ids_C=ids_C,
                scored_ids_R=ids_C[rows_R],
                row_map_R=rows_R,
                support=support,
                candidate_ids_RK=random.integers(0, 90, (len(rows_R), support.width)).astype(np.int32)
                if given
                else None,
                temperature=temperature,
            )
        )
    return made


@torch.no_grad()
def reference(directory: Path, request: ScoreRequest) -> np.ndarray:
    """Return log-probs [R, V] in float64 logits' log-softmax, of one sequence alone."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    logits_CV = model(torch.tensor(request.context_ids_C[None].astype(np.int64))).logits[0].double()
    rows_R = torch.tensor(request.row_map_R.astype(np.int64)) - 1
    return torch.log_softmax(logits_CV[rows_R] / request.temperature, dim=-1).numpy()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("seed", [0, 1], ids=["tied", "untied"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "support",
    [
        Support(kind=SupportKind.TEACHER_TOPK, width=16),
        Support(kind=SupportKind.STUDENT_TOPK, width=5),
        Support(kind=SupportKind.DRAWS, width=3),
        Support(kind=SupportKind.SAMPLED),
    ],
    ids=lambda support: str(support.kind),
)
def test_scores_equal_full_logits(
    support: Support, temperature: float, seed: int, checkpoint: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks of seven rows, so that rows of one sequence fall into several.
    monkeypatch.setattr(forward, "_CHUNK_ENTRIES", 7 * 130)
    forward.load(checkpoint(seed), "float32")
    asked = requests(support, temperature)
    for request, scores in zip(asked, forward.score(asked, batch_tokens=64), strict=True):
        full_RV = reference(checkpoint(seed), request)
        np.testing.assert_allclose(
            scores.logp_RK, np.take_along_axis(full_RV, scores.ids_RK.astype(np.int64), 1), atol=TOLERANCE
        )
        if support.kind is SupportKind.TEACHER_TOPK:
            best_RK = -np.sort(-full_RV, axis=1)[:, : support.width]
            np.testing.assert_allclose(scores.logp_RK, best_RK, atol=TOLERANCE)
            assert (np.diff(scores.logp_RK, axis=1) <= 0).all()
            outside_R = 1 - np.exp(best_RK).sum(axis=1)
            np.testing.assert_allclose(np.exp(scores.tail_R), outside_R, atol=TOLERANCE)
        elif support.kind is SupportKind.SAMPLED:
            assert np.array_equal(scores.ids_RK[:, 0], request.scored_ids_R)
        else:
            assert np.array_equal(scores.ids_RK, request.candidate_ids_RK)


def test_uneven_batches_equal_one_by_one(checkpoint: Callable[[int], Path]) -> None:
    forward.load(checkpoint(0), "float32")
    asked = requests(Support(kind=SupportKind.TEACHER_TOPK, width=8), 1.0)
    alone: list[Scores] = [forward.score([request], batch_tokens=1)[0] for request in asked]
    for budget in (1, 60, 10_000):
        for one, many in zip(alone, forward.score(asked, batch_tokens=budget), strict=True):
            assert np.array_equal(one.ids_RK, many.ids_RK)
            np.testing.assert_allclose(one.logp_RK, many.logp_RK, atol=TOLERANCE)


def test_requests_of_several_supports_are_answered_in_order(checkpoint: Callable[[int], Path]) -> None:
    forward.load(checkpoint(0), "float32")
    top = requests(Support(kind=SupportKind.TEACHER_TOPK, width=8), 1.0)
    sampled = requests(Support(kind=SupportKind.SAMPLED), 0.5)
    mixed = [request for pair in zip(top, sampled, strict=True) for request in pair]
    answers = forward.score(mixed, batch_tokens=1000)
    assert [scores.support for scores in answers] == [request.support for request in mixed]
    assert [len(scores.ids_RK) for scores in answers] == [len(request.row_map_R) for request in mixed]
    np.testing.assert_allclose(answers[0].logp_RK, forward.score(top, batch_tokens=1000)[0].logp_RK, atol=TOLERANCE)


def test_a_request_without_rows_has_an_empty_answer(checkpoint: Callable[[int], Path]) -> None:
    forward.load(checkpoint(0), "float32")
    (request,) = requests(Support(kind=SupportKind.TEACHER_TOPK, width=8), 1.0, lengths=[9])
    empty = msgspec.structs.replace(request, scored_ids_R=request.scored_ids_R[:0], row_map_R=request.row_map_R[:0])
    nothing, something = forward.score([empty, request], batch_tokens=100)
    assert nothing.ids_RK.shape == nothing.logp_RK.shape == (0, 8)
    assert len(something.ids_RK) == len(request.row_map_R)


def test_no_more_logits_than_a_chunk_exist_at_once(
    checkpoint: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward.load(checkpoint(0), "float32")
    monkeypatch.setattr(forward, "_CHUNK_ENTRIES", 600)
    seen: list[int] = []
    real = torch.Tensor.logsumexp

    def spy(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        seen.append(tensor.numel())
        return real(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "logsumexp", spy)
    asked = requests(Support(kind=SupportKind.TEACHER_TOPK, width=8), 1.0, lengths=[100])
    forward.score(asked, batch_tokens=1000)
    assert len(seen) > 5 and max(seen) <= 600
