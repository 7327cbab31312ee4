"""Weight updates of a vLLM engine: what is lost, what they cost, and how many bytes they move.

Without `--quick` the student is SmolLM2-135M, served in bfloat16. Each part starts an engine of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchlib import print_json

from asyncopd.bench.report import lines
from asyncopd.bench.weights.delta_bytes import bench_delta_bytes
from asyncopd.bench.weights.in_flight import bench_in_flight
from asyncopd.bench.weights.pauses import bench_pauses
from asyncopd.bench.weights.policies import bench_policies
from asyncopd.bench.weights.serving import Student
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig

_ROOT = Path(__file__).parent.parent
_RATES = (1e-6, 3e-6, 1e-5)


@dataclass(frozen=True)
class Amount:
    """How much is measured; `lr` is that of the synthetic updates."""

    student: str = "smollm2"
    updates: int = 200
    repeats: int = 7
    concurrent: int = 16
    turn_tokens: int = 96
    steps: int = 12
    lr: float = 1e-5


_QUICK = Amount(student="quickstart", updates=6, repeats=1, concurrent=4, turn_tokens=32, steps=2)


async def measure(amount: Amount, parts: list[str], scratch: Path) -> dict[str, Any]:
    """Take the measurements named."""
    config = load(_ROOT / "configs" / f"{amount.student}.yaml", ["student.dtype=bfloat16"], TrainConfig)
    student = await asyncio.to_thread(Student.save, config, scratch / "student")
    serving = {"concurrent": amount.concurrent, "turn_tokens": amount.turn_tokens, "lr": amount.lr}
    figures: dict[str, Any] = {"student": config.student.model, "dtype": config.student.dtype, "lr": amount.lr}
    if "in-flight" in parts:
        figures |= await bench_in_flight(student, updates=amount.updates, say=print, **serving)
    if "pauses" in parts:
        figures |= await bench_pauses(student, repeats=amount.repeats, lr=amount.lr)
    if "kv-policies" in parts:
        figures["kv_policy"] = await bench_policies(student, repeats=amount.repeats, **serving)
    if "bytes" in parts:
        pages = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
        text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
        figures |= await asyncio.to_thread(
            bench_delta_bytes, student, text, scratch, rates=_RATES, steps=amount.steps, say=print
        )
    return figures


def main() -> None:
    parts = ["in-flight", "pauses", "kv-policies", "bytes"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--quick", action="store_true", help="measure hardly anything, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="the parts to measure")
    parser.add_argument("--updates", type=int, help="updates in flight")
    parser.add_argument("--repeats", type=int, help="how often each is measured")
    parser.add_argument("--steps", type=int, help="training steps at each learning rate")
    arguments = parser.parse_args()
    given = {name: getattr(arguments, name) for name in ("updates", "repeats", "steps")}
    amount = replace(_QUICK if arguments.quick else Amount(), **{k: v for k, v in given.items() if v is not None})
    with tempfile.TemporaryDirectory(prefix="asyncopd-bench-") as scratch:
        figures = asyncio.run(measure(amount, arguments.only, Path(scratch)))
    print("\n".join(lines(figures)))
    if arguments.json:
        print_json(figures, amount.repeats)


if __name__ == "__main__":
    main()
