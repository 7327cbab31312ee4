"""Our engine against bare vLLM, as `asyncopd bench engine` does it, on the student of a shipped configuration."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from pathlib import Path

from benchlib import print_json

from asyncopd.bench.engine import bench_engine
from asyncopd.bench.report import lines
from asyncopd.bench.setting import EngineBench
from asyncopd.config.loading import load
from asyncopd.config.root import TrainConfig

_CONFIGS = Path(__file__).parent.parent / "configs"
_FULL = {"quickstart": EngineBench(requests=1024), "smollm2": EngineBench(requests=128)}
_QUICK = EngineBench(concurrent=8, requests=8, turn_tokens=8, repeats=1, server=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--student", choices=tuple(_FULL), default="quickstart", help="whose student")
    parser.add_argument("--quick", action="store_true", help="measure hardly anything, to see that it runs")
    parser.add_argument("--repeats", type=int, default=7, help="how often each is measured")
    arguments = parser.parse_args()
    bench = _QUICK if arguments.quick else dataclasses.replace(_FULL[arguments.student], repeats=arguments.repeats)
    config = load(_CONFIGS / f"{arguments.student}.yaml", [], TrainConfig)
    figures = asyncio.run(bench_engine(config, bench, print))
    print("\n".join(lines(figures)))
    if arguments.json:
        print_json(figures, bench.repeats)


if __name__ == "__main__":
    main()
