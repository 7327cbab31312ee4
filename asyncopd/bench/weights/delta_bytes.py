"""How many bytes a delta takes over a training with AdamW, by learning rate, and how fast the codec is.

The student learns to continue the project's own documents, in float32, and is sent in serving dtype.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from asyncopd.bench.weights.serving import Student
from asyncopd.models.loading import DTYPES, load_tokenizer
from asyncopd.models.resolve import resolve
from asyncopd.records import Manifest, Version
from asyncopd.tensors.delta_file import write_delta
from asyncopd.tensors.mapped import write_tensors
from asyncopd.tensors.shadow import Shadow

_ROWS = 4
_ROW_TOKENS = 128

Figures = dict[str, list[float]]


def bench_delta_bytes(
    student: Student, text: str, scratch: Path, *, rates: Sequence[float], steps: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train `steps` steps at each of `rates` and send every one; files pass through `scratch`."""
    tokenizer = load_tokenizer(resolve(student.config.student.model), None)
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    measured: dict[float, Figures] = {}
    for rate in rates:
        say(f"training at a learning rate of {rate:g}")
        measured[rate] = _train(student, ids, scratch, rate, steps)
    speeds = {
        name: statistics.median(speed for figures in measured.values() for speed in figures[name])
        for name in ("encode_gb_per_s", "apply_gb_per_s")
    }
    return {
        "delta_bytes_ratio": {f"{rate:g}": statistics.mean(figures["ratio"]) for rate, figures in measured.items()},
        "delta_bytes_ratio_last": {f"{rate:g}": figures["ratio"][-1] for rate, figures in measured.items()},
        "codec_gb_per_s": min(speeds.values()),
        **speeds,
    }


def _train(student: Student, ids: torch.Tensor, scratch: Path, rate: float, steps: int) -> Figures:
    model = student.model().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    random = torch.Generator().manual_seed(0)
    leader, follower = Shadow(), Shadow()
    before = _served(student, model)
    leader.take(Version(0, 0), before.items())
    keyframe = write_tensors(scratch / "keyframe", Version(0, 0), before.items())
    files = [keyframe]
    follower.follow(Manifest(files=(keyframe,)))
    figures: Figures = {"ratio": [], "encode_gb_per_s": [], "apply_gb_per_s": []}
    for step in range(1, steps + 1):
        starts = torch.randint(0, len(ids) - _ROW_TOKENS, (_ROWS,), generator=random).tolist()
        rows = torch.stack([ids[start : start + _ROW_TOKENS] for start in starts])
        model(rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tensors = _served(student, model)
        began = time.perf_counter()
        delta = leader.diff(Version(0, step), tensors.items(), limit=keyframe.nbytes)
        figures["encode_gb_per_s"].append(keyframe.nbytes / 1e9 / (time.perf_counter() - began))
        assert delta is not None, "a delta of more bytes than all tensors"
        files.append(write_delta(str(scratch / f"{step}.delta"), delta))
        began = time.perf_counter()
        follower.follow(Manifest(files=tuple(files)))
        figures["apply_gb_per_s"].append(keyframe.nbytes / 1e9 / (time.perf_counter() - began))
        figures["ratio"].append(files[-1].nbytes / keyframe.nbytes)
    return figures


def _served(student: Student, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    dtype = DTYPES[student.config.student.dtype]
    return {name: parameter.detach().to(dtype) for name, parameter in model.named_parameters()}
