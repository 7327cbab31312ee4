"""Objectives by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from asyncopd.config.objective import ObjectiveSection
from asyncopd.errors import UserError
from asyncopd.objectives import divergences, monte_carlo, regularisers, supervised, weights
from asyncopd.objectives.composition import Composition, Term
from asyncopd.objectives.context import Context
from asyncopd.objectives.needs import Needs
from asyncopd.plugins import UnknownPlugin, find
from asyncopd.records import Support, SupportKind
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
    """Reverse KL over TopK(T) and a tail bucket, recomputed under the current learner."""
    return _over_teacher_topk(section, lambda c: divergences.reverse_kl_topk(c.logp_RK, c.teacher_RK))


def forward_kl(section: ObjectiveSection) -> Composition:
    """Forward KL over TopK(T) and a tail bucket."""
    return _over_teacher_topk(section, lambda c: divergences.forward_kl(c.logp_RK, c.teacher_RK))


def reverse_kl_mc(section: ObjectiveSection) -> Composition:
    """Reverse KL estimated from the generated token, advantage recomputed, ratio to log μ, no clipping."""

    def signal(context: Context) -> Any:
        return monte_carlo.reverse_kl_mc(context.logp_RK, context.teacher_RK, context.behaviour_R[:, None])

    return Composition(
        needs=Needs(support=Support(kind=SupportKind.SAMPLED), behaviour=True),
        components={"distill": Term(signal, weights.freshness), **_drift(section)},
        diagnostics={"teacher_kl": signal},
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
    "cross_entropy": cross_entropy,
}


def _over_teacher_topk(section: ObjectiveSection, signal: Callable[[Context], Any]) -> Composition:
    return Composition(
        needs=Needs(support=Support(kind=SupportKind.TEACHER_TOPK, width=section.width), behaviour=True),
        components={"distill": Term(signal, weights.freshness), **_drift(section)},
        diagnostics={"teacher_kl": signal, "coverage": lambda c: c.logp_RK.exp().sum(dim=-1)},
    )


def _drift(section: ObjectiveSection) -> dict[str, Term]:
    """Return the regulariser λ·KL(π‖μ) on stale tokens, where `objective.options.drift` sets λ."""
    coefficient = _options(section, {"drift": 0.0})["drift"]
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
