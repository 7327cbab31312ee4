"""`bench engine`: our engine against bare vLLM, while a learner trains beside both.

Both serve the same requests, interleaved in one run, so that a machine that slows down slows both.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from asyncopd.bench.beside import Beside, open_beside
from asyncopd.bench.workload import Workload, run_all, trajectory_of
from asyncopd.config.model import Dtype
from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.root import TrainConfig
from asyncopd.engines.start import start_engine
from asyncopd.models.resolve import resolve
from asyncopd.records import NO_DRAWS, DrawSpec, GenerateRequest, Trajectory
from asyncopd.runtime.prepare import tokenizer_of
from asyncopd.runtime.world import check_prompts, open_world
from asyncopd.seams import Engine
from asyncopd.telemetry.metrics import LoopLag
from asyncopd.text.chat import Chat

_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
_DRAWS = {"head_32": DrawSpec(head=32), "head_64": DrawSpec(head=64)}
_STILL = 1e-12  # a learning rate: beside an engine, a learner is only to work


@dataclass(frozen=True)
class EngineBench:
    """How much is measured: `repeats` times `requests` turns of `turn_tokens` tokens, `concurrent` at once."""

    concurrent: int = 64
    requests: int = 192
    turn_tokens: int = 48
    repeats: int = 5


async def bench_engine(config: TrainConfig, bench: EngineBench, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the engine of `config` on its student. `say` is told what is measured. Raises `UserError`."""
    student = resolve(config.student.model)
    vocabulary = AutoConfig.from_pretrained(student).get_text_config().vocab_size
    config = _comparable(config, bench, vocabulary)
    workload = await _workload(config, bench, student)
    with tempfile.TemporaryDirectory(prefix="asyncopd-bench-") as scratch:
        setting = _Setting(config, student, vocabulary, workload, bench, Path(scratch), say)
        throughput = await _throughput(setting)
        agreement = {dtype: await _agreement(setting, dtype) for dtype in _DTYPES}
        draws_cost = await _draws_cost(setting)
    return {
        **throughput,
        **{
            f"logprob_diff_{name}": {dtype: figures[name] for dtype, figures in agreement.items()}
            for name in ("mean", "p99", "max")
        },
        "draws_cost": draws_cost,
        "student": config.student.model,
        "dtype": config.student.dtype,
        "concurrent": bench.concurrent,
        "requests": bench.requests,
        "turn_tokens": bench.turn_tokens,
    }


@dataclass(frozen=True)
class _Setting:
    config: TrainConfig
    student: Path
    vocabulary: int
    workload: Workload
    bench: EngineBench
    scratch: Path
    say: Callable[[str], None]


def _comparable(config: TrainConfig, bench: EngineBench, vocabulary: int) -> TrainConfig:
    """Return the configuration with what the comparison fixes."""
    optimizer = config.learner.optimizer.model_copy(update={"lr": _STILL, "matrix_lr": _STILL})
    return config.model_copy(
        update={
            "engine": config.engine.model_copy(update={"max_concurrent": bench.concurrent}),
            "learner": config.learner.model_copy(update={"optimizer": optimizer}),
            "objective": ObjectiveSection(width=min(64, vocabulary)),
        }
    )


async def _workload(config: TrainConfig, bench: EngineBench, student: Path) -> Workload:
    world = await open_world(config.environment)
    chat = Chat(tokenizer_of(config.student, student), world.tools)
    longest = config.engine.max_context - bench.turn_tokens
    posed = await check_prompts(world, chat, max_context=config.engine.max_context, seed=config.run.seed)
    prompts = [prompt[-longest:] for prompt in itertools.islice(itertools.cycle(posed), bench.requests)]
    return Workload(prompts, bench.turn_tokens, config.rollout.temperature, bench.concurrent)


async def _throughput(setting: _Setting) -> dict[str, Any]:
    """Measure our engine and bare vLLM in turns, each with the learner beside it."""
    async with AsyncExitStack() as stack:
        setting.say("starting our engine, bare vLLM and a learner")
        engine = await stack.enter_async_context(_engine(setting, setting.config))
        bare_module = importlib.import_module("asyncopd.bench.bare")  # imports vLLM, as our engine has by now
        bare = await stack.enter_async_context(bare_module.bare_vllm(setting.config, setting.student))
        beside = await stack.enter_async_context(_beside(setting, setting.config, engine))
        servers = {"asyncopd": _serve(engine), "vllm": bare.serve}
        lags = {name: LoopLag() for name in servers}
        rates: dict[str, list[float]] = {name: [] for name in servers}
        await _round(setting, beside, servers, {name: LoopLag() for name in servers}, order=list(servers))
        for repeat in range(setting.bench.repeats):
            setting.say(f"throughput, repeat {repeat + 1} of {setting.bench.repeats}")
            order = sorted(servers, reverse=repeat % 2 == 1)  # who comes first takes turns too
            for name, rate in (await _round(setting, beside, servers, lags, order)).items():
                rates[name].append(rate)
    ratios = [ours / theirs for ours, theirs in zip(rates["asyncopd"], rates["vllm"], strict=True)]
    return {
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratios": ratios,
        "loop_lag_p99_ms": lags["asyncopd"].quantile(0.99) * 1e3,
        "loop_lag_p99_ms_vllm": lags["vllm"].quantile(0.99) * 1e3,
        "tokens_per_second": {name: statistics.median(rate) for name, rate in rates.items()},
        "learner_step_seconds": statistics.median(report.seconds for report in beside.reports),
    }


async def _round(
    setting: _Setting,
    beside: Beside,
    servers: dict[str, Callable[[GenerateRequest], Awaitable[int]]],
    lags: dict[str, LoopLag],
    order: list[str],
) -> dict[str, float]:
    """Let each server serve all requests once, with the learner stepping; return tokens per second of each."""
    rates = {}
    for name in order:
        async with beside.stepping():
            lags[name].start()
            try:
                rates[name] = await run_all(setting.workload.requests(), servers[name], setting.bench.concurrent)
            finally:
                lags[name].stop()
    return rates


async def _agreement(setting: _Setting, dtype: Dtype) -> dict[str, float | None]:
    """Compare log-probs of engine and learner at version 0 in `dtype`."""
    setting.say(f"log-prob agreement in {dtype}")
    student = setting.config.student.model_copy(update={"dtype": dtype})
    config = setting.config.model_copy(update={"student": student})
    async with _engine(setting, config) as engine, _beside(setting, config, engine) as beside:
        return (await beside.step()).agreement.figures()


async def _draws_cost(setting: _Setting) -> dict[str, float]:
    """Return how much longer the same turns take with each kind of draws, relative to none."""
    most = DrawSpec(head=max(draws.head for draws in _DRAWS.values()))
    seconds: dict[str, list[float]] = {name: [] for name in ("none", *_DRAWS)}
    async with _engine(setting, setting.config, most) as engine:
        for repeat in range(setting.bench.repeats + 1):
            setting.say(f"cost of draws, repeat {repeat} of {setting.bench.repeats}")
            for name in seconds:
                requests = setting.workload.requests(_DRAWS.get(name, NO_DRAWS))
                rate = await run_all(requests, _serve(engine), setting.bench.concurrent)
                if repeat:  # the first one warms up
                    seconds[name].append(1 / rate)
    return {
        name: statistics.median(drawn / bare - 1 for drawn, bare in zip(seconds[name], seconds["none"], strict=True))
        for name in _DRAWS
    }


def _serve(engine: Engine) -> Callable[[GenerateRequest], Awaitable[int]]:
    async def serve(request: GenerateRequest) -> int:
        return len((await engine.generate(request)).ids_R)

    return serve


@asynccontextmanager
async def _engine(setting: _Setting, config: TrainConfig, draws: DrawSpec = NO_DRAWS) -> AsyncIterator[Engine]:
    engine = await start_engine(
        "benched",
        setting.student,
        config.engine,
        dtype=config.student.dtype,
        threads=config.runtime.threads.engine,
        seed=config.run.seed,
        draws=draws,
    )
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def _beside(setting: _Setting, config: TrainConfig, engine: Engine) -> AsyncIterator[Beside]:
    """Start a learner whose batch is what `engine` samples now, at version 0."""
    trajectories: list[Trajectory] = []

    async def serve(request: GenerateRequest) -> int:
        generation = await engine.generate(request)
        trajectories.append(trajectory_of(len(trajectories), request, generation))
        return len(generation.ids_R)

    batch = setting.workload.requests(count=config.scheduler.batch_size)
    await run_all(batch, serve, setting.bench.concurrent)
    async with open_beside(config, setting.student, trajectories, setting.vocabulary, setting.scratch) as beside:
        yield beside
