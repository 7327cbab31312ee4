"""`bench engine`: our engine against bare vLLM, while a learner trains beside both.

Both serve the same requests, interleaved in one run, so that a machine that slows down slows both.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from asyncopd.bench.beside import Beside
from asyncopd.bench.setting import EngineBench, Serve, Setting, prepare_setting, serve
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


async def _throughput(setting: Setting) -> tuple[dict[str, Any], dict[Dtype, Differences]]:
    """Measure our engine and bare vLLM in turns, each with the learner beside it; and how well that agrees."""
    async with AsyncExitStack() as stack:
        setting.say("starting our engine, bare vLLM and a learner")
        engine = await stack.enter_async_context(setting.engine())
        bare_vllm = importlib.import_module("asyncopd.bench.bare").bare_vllm  # of vLLM, which our engine imported
        bare = await stack.enter_async_context(bare_vllm(setting.config, setting.student))
        servers = {"asyncopd": serve(engine), "vllm": bare.serve}
        if setting.bench.server:
            setting.say("starting our engine over HTTP")
            servers["asyncopd_server"] = serve(await stack.enter_async_context(setting.engine("vllm_server")))
        beside = await stack.enter_async_context(setting.beside(engine))
        agreement = (await beside.step()).agreement  # before a step there is no other version than 0
        rates, lags = await _rounds(setting, beside, servers)
    ratios = {name: [ours / bare for ours, bare in zip(rates[name], rates["vllm"], strict=True)] for name in servers}
    figures = {
        "throughput_ratio": statistics.median(ratios["asyncopd"]),
        "throughput_ratios": ratios["asyncopd"],
        "loop_lag_p99_ms": lags["asyncopd"].quantile(0.99) * 1e3,
        "loop_lag_p99_ms_vllm": lags["vllm"].quantile(0.99) * 1e3,
        "tokens_per_second": {name: statistics.median(rate) for name, rate in rates.items()},
        "learner_step_seconds": statistics.median(report.seconds for report in beside.reports),
    }
    if setting.bench.server:
        figures["server_throughput_ratio"] = statistics.median(ratios["asyncopd_server"])
        figures["server_loop_lag_p99_ms"] = lags["asyncopd_server"].quantile(0.99) * 1e3
    return figures, {setting.config.student.dtype: agreement}


async def _rounds(
    setting: Setting, beside: Beside, servers: dict[str, Serve]
) -> tuple[dict[str, list[float]], dict[str, LoopLag]]:
    """Return each server's tokens per second, a figure a repeat, and the lag of the event loop while it served."""
    rates: dict[str, list[float]] = {name: [] for name in servers}
    lags = {name: LoopLag() for name in servers}
    await _round(setting, beside, servers, {name: LoopLag() for name in servers})  # warms up
    for repeat in range(setting.bench.repeats):
        setting.say(f"throughput, repeat {repeat + 1} of {setting.bench.repeats}")
        turned = dict(list(servers.items())[:: -1 if repeat % 2 else 1])  # who comes first takes turns too
        for name, rate in (await _round(setting, beside, turned, lags)).items():
            rates[name].append(rate)
    return rates, lags


async def _round(
    setting: Setting, beside: Beside, servers: dict[str, Serve], lags: dict[str, LoopLag]
) -> dict[str, float]:
    """Let each server serve all requests once, with the learner stepping; return tokens per second of each."""
    rates = {}
    for name, served in servers.items():
        async with beside.stepping():
            lags[name].start()
            try:
                rates[name] = await setting.run(served)
            finally:
                lags[name].stop()
    return rates


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
