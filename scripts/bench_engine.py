"""Our engine against bare vLLM, as `asyncopd bench engine` does it, on the student of a shipped configuration."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from benchlib import print_json

from asyncopd.bench.engine import EngineBench, bench_engine
from asyncopd.bench.report import lines
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig

_CONFIGS = Path(__file__).parent.parent / "configs"
_QUICK = EngineBench(concurrent=8, requests=8, turn_tokens=8, repeats=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--student", choices=("quickstart", "smollm2"), default="quickstart", help="whose student")
    parser.add_argument("--quick", action="store_true", help="measure hardly anything, to see that it runs")
    parser.add_argument("--concurrent", type=int, default=64, help="turns under way at once")
    parser.add_argument("--requests", type=int, default=192, help="turns of one repeat")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each turn")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is measured")
    arguments = parser.parse_args()
    bench = _QUICK
    if not arguments.quick:
        bench = EngineBench(arguments.concurrent, arguments.requests, arguments.tokens, arguments.repeats)
    config = load(_CONFIGS / f"{arguments.student}.yaml", [], TrainConfig)
    figures = asyncio.run(bench_engine(config, bench, print))
    print("\n".join(lines(figures)))
    if arguments.json:
        print_json(figures, bench.repeats)


if __name__ == "__main__":
    main()
