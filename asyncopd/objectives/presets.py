"""Objectives by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from asyncopd.config.objective import ObjectiveSection
from asyncopd.errors import UserError
from asyncopd.objectives import divergences, monte_carlo, regularisers, supervised, weights
from asyncopd.objectives.composition import Composition, PerToken, Term
from asyncopd.objectives.context import Context
from asyncopd.objectives.needs import Needs
from asyncopd.plugins import UnknownPlugin, find
from asyncopd.records import NO_DRAWS, DrawSpec, Support, SupportKind
from asyncopd.seams import Objective

Preset = Callable[[ObjectiveSection], Composition]


def build(section: ObjectiveSection) -> Objective:
    """Return the objective that `section` describes.

    Raises `UserError` for a name that is neither a preset, an entry point nor `module:Class`, and for
    options that a preset does not have.
    """
    preset = PRESETS.get(section.use)
    if preset is not None:
        return preset(section)
    try:
        return find("asyncopd.objectives", section.use)(section)
    except UnknownPlugin as error:
        problem = f"{section.use!r} is neither a preset nor an entry point of 'asyncopd.objectives' nor module:Class"
        near = difflib.get_close_matches(section.use, PRESETS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"presets: {', '.join(PRESETS)}"
        raise UserError("objective.use", str(error) if ":" in section.use else problem, remedy) from None


def reverse_kl_topk(section: ObjectiveSection) -> Composition:
    """Reverse KL over TopK(T) and a tail bucket, recomputed under the current learner.

    With the option `support: student` over TopK(μ), as the engine that sampled returned it.
    """
    options = _options(section, {"support": "teacher", "drift": 0.0})
    if options["support"] not in ("teacher", "student"):
        raise UserError("objective.options.support", f"got {options['support']!r}", "give teacher or student")
    kind = SupportKind.TEACHER_TOPK if options["support"] == "teacher" else SupportKind.STUDENT_TOPK
    draws = NO_DRAWS if options["support"] == "teacher" else DrawSpec(head=section.width)
    return _distillation(
        Needs(support=Support(kind=kind, width=section.width), behaviour=True, draws=draws),
        lambda c: divergences.reverse_kl_topk(c.logp_RK, c.teacher_RK, c.teacher_tail_R),
        options,
        {"coverage": _coverage},
    )


def forward_kl(section: ObjectiveSection) -> Composition:
    """Forward KL over TopK(T) and a tail bucket."""
    return _distillation(
        Needs(support=Support(kind=SupportKind.TEACHER_TOPK, width=section.width), behaviour=True),
        lambda c: divergences.forward_kl(c.logp_RK, c.teacher_RK, c.teacher_tail_R),
        _options(section, {"drift": 0.0}),
        {"coverage": _coverage},
    )


def reverse_kl_mc(section: ObjectiveSection) -> Composition:
    """Reverse KL estimated from `width` i.i.d. tokens of μ, advantage recomputed, ratio to log μ, no clipping.

    The first is the generated token, the others are drawn beside it. With width 1 nothing is.
    """
    kind = SupportKind.SAMPLED if section.width == 1 else SupportKind.DRAWS
    draws = DrawSpec(iid=section.width - 1)
    return _distillation(
        Needs(support=Support(kind=kind, width=section.width), behaviour=True, draws=draws, whole=True),
        lambda c: monte_carlo.reverse_kl_mc(c.logp_RK, c.teacher_RK, c.behaviour_RK),
        _options(section, {"drift": 0.0}),
    )


def reverse_kl_head_tail(section: ObjectiveSection) -> Composition:
    """Reverse KL, exact over TopK(μ), and estimated beyond from draws of the tail; ours.

    Of `width` entries the option `tail` are draws, by default half.
    """
    options = _options(section, {"tail": section.width // 2, "drift": 0.0})
    tail = options["tail"]
    if not isinstance(tail, int) or isinstance(tail, bool) or not 1 <= tail < section.width:
        raise UserError(
            "objective.options.tail",
            f"got {tail!r} of objective.width {section.width}",
            "leave at least one entry to the tail, and one to the head",
        )
    head = section.width - tail
    support = Support(kind=SupportKind.DRAWS, width=section.width)
    return _distillation(
        Needs(support=support, behaviour=True, draws=DrawSpec(head=head, tail=tail), whole=True),
        lambda c: monte_carlo.reverse_kl_head_tail(c.logp_RK, c.teacher_RK, c.behaviour_RK, head),
        options,
        {"coverage": lambda c: _coverage(c, head)},
    )


def cross_entropy(section: ObjectiveSection) -> Composition:
    """Negative log-likelihood of the trained tokens; asks no teacher."""
    _options(section, {})
    return Composition(
        needs=Needs(support=None, behaviour=False),
        components={"likelihood": Term(lambda c: supervised.cross_entropy(c.logp_R), weights.uniform)},
    )


PRESETS: Mapping[str, Preset] = {
    "reverse_kl_topk": reverse_kl_topk,
    "forward_kl": forward_kl,
    "reverse_kl_mc": reverse_kl_mc,
    "reverse_kl_head_tail": reverse_kl_head_tail,
    "cross_entropy": cross_entropy,
}


def fed_by(offered: DrawSpec, width: int) -> list[str]:
    """Return the distillation presets that find in `offered` all the draws they need at that width."""
    needs = {name: preset(ObjectiveSection(use=name, width=max(2, width))).needs for name, preset in PRESETS.items()}
    return [name for name, need in needs.items() if need.support is not None and offered.covers(need.draws)]


def _distillation(
    needs: Needs, signal: PerToken, options: Mapping[str, Any], diagnostics: Mapping[str, PerToken] | None = None
) -> Composition:
    """Return the composition of a freshness-weighted divergence, and where asked for the drift regulariser."""
    drift = _drift(options["drift"])
    return Composition(
        needs=replace(needs, whole=needs.whole or bool(drift)),
        components={"distill": Term(signal, weights.freshness), **drift},
        diagnostics={"teacher_kl": signal, **(diagnostics or {})},
    )


def _coverage(context: Context, entries: int | None = None) -> torch.Tensor:
    """Return the learner's probability of the first `entries` of the support, by default all."""
    return context.logp_RK[:, :entries].exp().sum(dim=-1)


def _drift(coefficient: Any) -> dict[str, Term]:
    """Return the regulariser λ·KL(π‖μ) on stale tokens, of which `objective.options.drift` is λ."""
    if not isinstance(coefficient, int | float) or isinstance(coefficient, bool) or coefficient < 0:
        raise UserError("objective.options.drift", f"got {coefficient!r}", "give a number of at least 0")
    if coefficient == 0:
        return {}
    return {"drift": Term(regularisers.drift, weights.uniform, float(coefficient))}


def _options(section: ObjectiveSection, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the section's options over `defaults`. Raises `UserError` for one that is not among them."""
    for name in section.options:
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1)
            known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(defaults) or 'none'}"
            raise UserError(f"objective.options.{name}", f"{section.use!r} has no such option", known)
    return defaults | section.options
