"""One optimizer step after another: log-probabilities, an objective it does not know by name, an update.

Invariants: a step divides by its tokens of mask 1, counted before any weight; its result does not depend on
how it is split into micro-batches; where it fails, weights and optimizer are as before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from asyncopd.config.learner import LearnerSection
from asyncopd.config.model import ModelSection
from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.scheduler import FreshnessSection
from asyncopd.errors import UserError
from asyncopd.learner.failure import NonFiniteLoss
from asyncopd.learner.forward import Forward
from asyncopd.learner.measures import Measures
from asyncopd.learner.member import Member, member_of
from asyncopd.learner.optimizer import Optimizer
from asyncopd.learner.staleness import Staleness
from asyncopd.learner.state import atomic_directory, export_checkpoint, save_tensors
from asyncopd.learner.weights import FullWeights, Weights
from asyncopd.models.loading import DTYPES, load_causal_lm, load_tokenizer
from asyncopd.models.packing import balanced_groups
from asyncopd.models.resolve import resolve_template
from asyncopd.objectives.needs import Needs
from asyncopd.objectives.presets import build
from asyncopd.records import Batch, Differences, Sample, Segment, StepReport
from asyncopd.seams import Objective


class Learner:
    """Owns the student's weights, those that train in float32. Calls are not concurrent.

    `temperature` is the behaviour policy's; `steps` is the length of the learning-rate schedule;
    `step_count` is the number of optimizer steps behind the weights, and versions made here are of `timeline`.
    With `publish` an adapter goes to engines merged or alone.
    """

    objective: Objective
    step_count: int

    def __init__(
        self,
        directory: Path,
        *,
        model: ModelSection,
        section: LearnerSection,
        objective: ObjectiveSection,
        freshness: FreshnessSection,
        max_staleness: int,
        temperature: float,
        steps: int,
        seed: int,
        timeline: int = 0,
        publish: Literal["merged", "adapter"] = "merged",
    ) -> None:
        torch.manual_seed(seed)
        self.objective = build(objective)
        self.step_count = 0
        self._timeline = timeline
        self._began = 0
        self._directory = directory
        self._model_section = model
        self._section = section
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = load_causal_lm(directory, "float32" if section.lora is None else model.dtype)
        self._model.to(self._device)  # type: ignore[arg-type]
        self._forward = Forward(
            self._model,
            temperature=temperature,
            distill_temperature=objective.distill_temperature,
            head_chunk=section.head_chunk,
            dtype=DTYPES[model.dtype],
        )
        self._weights = self._choose_weights(publish)
        self._optimizer = Optimizer(self._model, section.optimizer, steps)
        self._staleness = Staleness(freshness, max_staleness)
        self._objective_state: dict[str, torch.Tensor] = {}

    def step(self, batch: Batch) -> StepReport:
        """Take optimizer step `batch.step`, which must be `step_count`.

        Samples without trained tokens, or without the scores the objective needs, teach nothing; a step
        without any token still counts. Raises `NonFiniteLoss`.
        """
        assert batch.step == self.step_count, f"asked for step {batch.step} at step {self.step_count}"
        started = time.perf_counter()
        # The weights that a timeline begins with are those of the step, in the timeline it left too.
        timeline = None if batch.step == self._began else self._timeline
        needs = self.objective.needs
        members = [m for sample in batch.samples if (m := member_of(sample, needs, batch.step, timeline))]
        measures = Measures()
        metrics = {"loss": 0.0, "grad_norm": 0.0, "lr": self._optimizer.lr(batch.step)}
        if members:
            tokens = sum(len(member) for member in members)
            for group in balanced_groups([len(m.ids_T) for m in members], self._section.micro_batch_tokens):
                metrics["loss"] += self._accumulate([members[index] for index in group], tokens, measures)
            metrics["grad_norm"] = self._update(members)
        averages = measures.averages()
        metrics |= averages
        if self.objective.needs.behaviour:
            metrics |= measures.ratio_metrics()
        self._objective_state = dict(self.objective.update(self._objective_state, averages))
        self._staleness.observe(measures.exact_differences())
        self.step_count += 1
        attempts = measures.attempts(batch)
        return StepReport(
            step=batch.step,
            tokens=sum(attempt.trained for attempt in attempts),
            attempts=attempts,
            metrics=metrics,
            lag_histogram=measures.lag_histogram(),
            seconds=time.perf_counter() - started,
            agreement=measures.agreement(),
            mixed=measures.mixed(),
        )

    @torch.no_grad()
    def compare(self, segments: Sequence[Segment]) -> Differences:
        """Compare engine and learner over generated tokens of the weights as they are; other tokens do not count."""
        needs = Needs(support=None, behaviour=True)
        timeline = None if self.step_count == self._began else self._timeline
        samples = [Sample(attempt=n, group=n, domain="", segment=segment) for n, segment in enumerate(segments)]
        members = [m for sample in samples if (m := member_of(sample, needs, self.step_count, timeline))]
        differences = Differences()
        for group in balanced_groups([len(m.ids_T) for m in members], self._section.micro_batch_tokens):
            chosen = [members[index] for index in group]
            for member, logp_R in zip(chosen, self._forward(chosen).logp_per_member(), strict=True):
                differences += Differences.of((logp_R - member.behaviour_R)[member.exact_R])
        return differences

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what engines are sent: weights in serving dtype under their Hugging Face names, or an adapter."""
        return self._weights.published()

    def save(self, directory: Path) -> None:
        """Write all that `restore` needs, atomically."""
        with atomic_directory(directory) as scratch:
            save_tensors(scratch / "model.safetensors", self._weights.trained)
            save_tensors(scratch / "optimizer.safetensors", self._optimizer.state())
            save_tensors(scratch / "objective.safetensors", self._objective_state)
            save_tensors(scratch / "random.safetensors", {"cpu": torch.random.get_rng_state()})
            state = {"step": self.step_count, "mismatch": self._staleness.mismatch}
            (scratch / "learner.json").write_text(json.dumps(state), encoding="utf-8")

    def restore(self, directory: Path) -> None:
        """Continue bitwise from what `save` wrote for the same configuration. Raises `UserError` if it is damaged."""
        try:
            self._restore(directory)
        except (OSError, SafetensorError, LookupError, ValueError) as error:
            raise UserError(
                str(directory), f"cannot be read ({error})", "bring the checkpoint back, or start a new run"
            ) from error

    def _restore(self, directory: Path) -> None:
        weights = load_file(directory / "model.safetensors")
        with torch.no_grad():
            for name, parameter in self._weights.trained.items():
                parameter.copy_(weights[name])
        self._optimizer.load_state(load_file(directory / "optimizer.safetensors"))
        self._objective_state = load_file(directory / "objective.safetensors")
        torch.random.set_rng_state(load_file(directory / "random.safetensors")["cpu"])
        state = json.loads((directory / "learner.json").read_text(encoding="utf-8"))
        self.step_count = self._began = state["step"]
        self._staleness.mismatch = state["mismatch"]

    def export(self, directory: Path) -> None:
        """Write an ordinary Hugging Face checkpoint in serving dtype, with tokenizer and chat template, atomically.

        An adapter is merged in, and lies beside in `adapter/` too.
        """
        template = self._model_section.chat_template
        tokenizer = load_tokenizer(self._directory, None if template is None else resolve_template(template))
        with atomic_directory(directory) as scratch:
            export_checkpoint(self._model, dict(self._weights.merged()), scratch)
            tokenizer.save_pretrained(scratch)
            self._weights.export_beside(scratch)

    def _choose_weights(self, publish: Literal["merged", "adapter"]) -> Weights:
        dtype = DTYPES[self._model_section.dtype]
        if self._section.lora is None:
            return FullWeights(self._model, dtype)
        from asyncopd.learner.lora import LoraWeights  # peft takes seconds to import

        alone = publish == "adapter"
        return LoraWeights(self._model, self._section.lora, alone=alone, base=self._directory)

    def _accumulate(self, members: Sequence[Member], tokens: int, measures: Measures) -> float:
        """Add the gradient of one micro-batch's share of the loss; return that share."""
        forward = self._forward(members)
        logp = forward.logp_per_member()
        verdicts = self._staleness.judge(members, logp)
        context = forward.context([verdict.weight for verdict in verdicts])
        stats = self.objective.stats(context)
        terms = self.objective.terms(context, stats, self._objective_state)
        loss = torch.stack([term.sum() for term in terms.values()]).sum() / tokens
        self._require_finite(loss, "loss", members)
        loss.backward()
        for member, verdict, logp_R in zip(members, verdicts, logp, strict=True):
            measures.add(member, verdict, logp_R)
        measures.add_sums({name: value.sum().item() for name, value in stats.items()})
        measures.add_sums({"entropy": forward.entropy_R.sum().item()})
        return loss.item()

    def _update(self, members: Sequence[Member]) -> float:
        """Clip and apply the gathered gradient; return its norm before clipping."""
        norm = self._optimizer.clip()
        self._require_finite(norm, "gradient", members)
        if norm > 0:  # else momentum alone would move the weights in a step that teaches nothing
            self._optimizer.step(self.step_count)
        self._optimizer.zero_grad()
        return norm.item()

    def _require_finite(self, value: torch.Tensor, name: str, members: Sequence[Member]) -> None:
        if torch.isfinite(value):
            return
        self._optimizer.zero_grad()
        attempts = sorted({member.attempt for member in members})
        raise NonFiniteLoss(f"step {self.step_count}: the {name} is {value.item()}; attempts {attempts}")
