"""`bench engine`: our engine against bare vLLM, while a learner trains beside both.

Both serve the same requests, interleaved in one run, so that a machine that slows down slows both.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncopd.bench.beside import Beside
from asyncopd.bench.cpu import Server, processes_started
from asyncopd.bench.setting import EngineBench, Setting, prepare_setting, serve
from asyncopd.config.model import Dtype
from asyncopd.config.root import TrainConfig
from asyncopd.records import NO_DRAWS, Differences, DrawSpec
from asyncopd.telemetry.metrics import LoopLag

_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
_DRAWS = {
    "head_32": DrawSpec(head=32),
    "head_64": DrawSpec(head=64),
    "iid_64": DrawSpec(iid=64),
    "head_32_tail_32": DrawSpec(head=32, tail=32),
}


async def bench_engine(config: TrainConfig, bench: EngineBench, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure vLLM as our engine on the student of `config`. `say` is told what is measured. Raises `UserError`."""
    with tempfile.TemporaryDirectory(prefix="asyncopd-bench-") as scratch:
        setting = await prepare_setting(config, bench, Path(scratch), say)
        throughput, agreement = await _throughput(setting)
        for dtype in _DTYPES:
            if dtype not in agreement:
                agreement[dtype] = await _agreement(setting, dtype)
        draws_cost = await _draws_cost(setting)
    return {
        **throughput,
        **{
            f"logprob_diff_{name}": {dtype: found.figures()[name] for dtype, found in agreement.items()}
            for name in ("mean", "p99", "max")
        },
        "draws_cost": draws_cost,
        "student": config.student.model,
        "dtype": config.student.dtype,
        "concurrent": bench.concurrent,
        "requests": bench.requests,
        "turn_tokens": bench.turn_tokens,
    }


@dataclass
class _Measured:
    """What one server took, a figure a repeat; and the lag of the event loop while it served."""

    rates: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    lag: LoopLag = field(default_factory=LoopLag)


async def _throughput(setting: Setting) -> tuple[dict[str, Any], dict[Dtype, Differences]]:
    """Measure our engine and bare vLLM in turns, each with the learner beside it; and how well that agrees."""
    async with AsyncExitStack() as stack:
        setting.say("starting our engine, bare vLLM and a learner")
        with processes_started() as processes:
            engine = await stack.enter_async_context(setting.engine())
        servers = {"asyncopd": Server(serve(engine), processes)}
        bare_vllm = importlib.import_module("asyncopd.bench.bare").bare_vllm  # of vLLM, which our engine imported
        with processes_started() as processes:
            bare = await stack.enter_async_context(bare_vllm(setting.config, setting.student))
        servers["vllm"] = Server(bare.serve, processes)
        if setting.bench.server:
            setting.say("starting our engine over HTTP")
            with processes_started() as processes:
                remote = await stack.enter_async_context(setting.engine("vllm_server"))
            servers["asyncopd_server"] = Server(serve(remote), processes)
        beside = await stack.enter_async_context(setting.beside(engine))
        agreement = (await beside.step()).agreement  # before a step there is no other version than 0
        measured = await _rounds(setting, beside, servers)
    figures = {
        **_against("", measured["asyncopd"], measured["vllm"]),
        "loop_lag_p99_ms_vllm": measured["vllm"].lag.quantile(0.99) * 1e3,
        "tokens_per_second": {name: statistics.median(found.rates) for name, found in measured.items()},
        "learner_step_seconds": statistics.median(report.seconds for report in beside.reports),
    }
    if setting.bench.server:
        figures |= _against("server_", measured["asyncopd_server"], measured["vllm"])
    return figures, {setting.config.student.dtype: agreement}


def _against(prefix: str, ours: _Measured, bare: _Measured) -> dict[str, Any]:
    ratios = [our / their for our, their in zip(ours.rates, bare.rates, strict=True)]
    costs = [their / our for our, their in zip(ours.cpu_seconds, bare.cpu_seconds, strict=True)]
    return {
        f"{prefix}throughput_ratio": statistics.median(ratios),
        f"{prefix}throughput_ratios": ratios,
        f"{prefix}cpu_ratio": statistics.median(costs),
        f"{prefix}loop_lag_p99_ms": ours.lag.quantile(0.99) * 1e3,
    }


async def _rounds(setting: Setting, beside: Beside, servers: dict[str, Server]) -> dict[str, _Measured]:
    """Let each server serve all requests, again and again, with the learner stepping."""
    measured = {name: _Measured() for name in servers}
    for repeat in range(setting.bench.repeats + 1):
        setting.say(f"throughput, repeat {repeat} of {setting.bench.repeats}")
        for name in list(servers)[:: -1 if repeat % 2 else 1]:  # who comes first takes turns too
            await _round(setting, beside, servers[name], measured[name] if repeat else _Measured())  # 0 warms up
    return measured


async def _round(setting: Setting, beside: Beside, server: Server, measured: _Measured) -> None:
    async with beside.stepping():
        measured.lag.start()
        before = server.cpu_seconds
        try:
            measured.rates.append(await setting.run(server.serve))
            measured.cpu_seconds.append(server.cpu_seconds - before)
        finally:
            measured.lag.stop()


async def _agreement(setting: Setting, dtype: Dtype) -> Differences:
    """Compare log-probs of engine and learner at version 0 in `dtype`."""
    setting.say(f"log-prob agreement in {dtype}")
    async with setting.engine(dtype=dtype) as engine, setting.beside(engine, dtype) as beside:
        return (await beside.step()).agreement


async def _draws_cost(setting: Setting) -> dict[str, float]:
    """Return how much longer the same turns take with each kind of draws, relative to none."""
    kinds = {name: draws for name, draws in _DRAWS.items() if draws.width <= setting.vocabulary}
    seconds: dict[str, list[float]] = {name: [] for name in ("none", *kinds)}
    async with setting.engine(draws=_most(kinds.values())) as engine:
        for repeat in range(setting.bench.repeats + 1):
            setting.say(f"cost of draws, repeat {repeat} of {setting.bench.repeats}")
            for name in seconds:
                rate = await setting.run(serve(engine), _DRAWS.get(name, NO_DRAWS))
                if repeat:  # the first one warms up
                    seconds[name].append(1 / rate)
    return {name: _excess(seconds[name], seconds["none"]) for name in kinds}


def _most(kinds: Collection[DrawSpec]) -> DrawSpec:
    return DrawSpec(
        head=max((draws.head for draws in kinds), default=0),
        tail=max((draws.tail for draws in kinds), default=0),
        iid=max((draws.iid for draws in kinds), default=0),
    )


def _excess(seconds: Sequence[float], reference: Sequence[float]) -> float:
    return statistics.median(longer / shorter - 1 for longer, shorter in zip(seconds, reference, strict=True))
