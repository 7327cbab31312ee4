"""What the measurements of an engine share: a configuration made comparable, its student, and a workload."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig

from asyncopd.bench.beside import Beside, open_beside
from asyncopd.bench.workload import Workload, run_all, trajectory_of
from asyncopd.config.model import Dtype
from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.root import TrainConfig
from asyncopd.engines.start import start_engine
from asyncopd.errors import UserError
from asyncopd.models.resolve import resolve
from asyncopd.records import NO_DRAWS, DrawSpec, GenerateRequest, Trajectory
from asyncopd.runtime.prepare import prepare_student
from asyncopd.seams import Engine

Serve = Callable[[GenerateRequest], Awaitable[int]]
"""Serves a request and returns how many tokens it got."""

_STILL = 1e-12  # a learning rate: beside an engine, a learner is only to work


@dataclass(frozen=True)
class EngineBench:
    """How much is measured: `repeats` times `requests` turns of `turn_tokens` tokens, `concurrent` at once.

    `server` says whether our engine is measured over HTTP too.
    """

    concurrent: int = 64
    requests: int = 256
    turn_tokens: int = 48
    repeats: int = 7
    server: bool = True


@dataclass(frozen=True)
class Setting:
    """Made by `prepare_setting`. `scratch` is an empty directory; `say` is told what is measured."""

    config: TrainConfig
    bench: EngineBench
    student: Path
    vocabulary: int
    workload: Workload
    scratch: Path
    say: Callable[[str], None]

    async def run(self, serve: Serve, draws: DrawSpec = NO_DRAWS) -> float:
        """Have all requests served and return tokens per second."""
        return await run_all(self.workload.requests(draws), serve, self.bench.concurrent)

    @asynccontextmanager
    async def engine(
        self, use: str = "vllm", dtype: Dtype | None = None, draws: DrawSpec = NO_DRAWS
    ) -> AsyncIterator[Engine]:
        """Start one of our engines, by default in the configuration's own dtype."""
        engine = await start_engine(
            f"benched-{use}",
            self.student,
            self.config.engine.model_copy(update={"use": use}),
            dtype=dtype or self.config.student.dtype,
            threads=self.config.runtime.threads.engine,
            seed=self.config.run.seed,
            draws=draws,
            logs=self.scratch,
        )
        try:
            yield engine
        finally:
            await engine.close()

    @asynccontextmanager
    async def beside(self, engine: Engine, dtype: Dtype | None = None) -> AsyncIterator[Beside]:
        """Start a learner whose batch is what `engine` samples now, at version 0."""
        student = self.config.student.model_copy(update={"dtype": dtype or self.config.student.dtype})
        config = self.config.model_copy(update={"student": student})
        trajectories: list[Trajectory] = []

        async def serve(request: GenerateRequest) -> int:
            generation = await engine.generate(request)
            trajectories.append(trajectory_of(len(trajectories), request, generation))
            return len(generation.ids_R)

        batch = self.workload.requests(count=config.scheduler.batch_size)
        await run_all(batch, serve, self.bench.concurrent)
        async with open_beside(config, self.student, trajectories, self.vocabulary, self.scratch) as beside:
            yield beside


async def prepare_setting(
    config: TrainConfig, bench: EngineBench, scratch: Path, say: Callable[[str], None]
) -> Setting:
    """Find the student and pose the tasks of `config`. Raises `UserError`."""
    student = resolve(config.student.model)
    vocabulary = AutoConfig.from_pretrained(student).get_text_config().vocab_size
    optimizer = config.learner.optimizer.model_copy(update={"lr": _STILL, "matrix_lr": _STILL})
    config = config.model_copy(
        update={
            "engine": config.engine.model_copy(update={"use": "vllm", "max_concurrent": bench.concurrent, "urls": []}),
            "learner": config.learner.model_copy(update={"optimizer": optimizer}),
            "objective": ObjectiveSection(width=min(64, vocabulary)),
        }
    )
    posed = (await prepare_student(config)).prompts
    longest = config.engine.max_context - bench.turn_tokens
    if longest < 1:
        raise UserError(
            f"{bench.turn_tokens} tokens a turn",
            f"leave no room in engine.max_context = {config.engine.max_context}",
            "ask for fewer",
        )
    prompts = [prompt[-longest:] for prompt in itertools.islice(itertools.cycle(posed), bench.requests)]
    workload = Workload(prompts, bench.turn_tokens, config.rollout.temperature, bench.concurrent)
    return Setting(config, bench, student, vocabulary, workload, scratch, say)


def serve(engine: Engine) -> Serve:
    """Let one of our engines serve."""

    async def tokens(request: GenerateRequest) -> int:
        return len((await engine.generate(request)).ids_R)

    return tokens
