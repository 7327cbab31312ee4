"""An objective as a sum of weighted signals and regularisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from asyncopd.objectives.context import Context
from asyncopd.objectives.needs import Needs
from asyncopd.records import Support

PerToken = Callable[[Context], torch.Tensor]
State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Term:
    """`coefficient · weight · signal`, each signal and weight a function of the context to shape R.

    A signal brings its own ratio and trust rule where it has any.
    """

    signal: PerToken
    weight: PerToken
    coefficient: float = 1.0


@dataclass(frozen=True)
class Composition:
    """Implements the seam `Objective`: terms by name, and diagnostics that the learner averages and reports."""

    needs: Needs
    components: Mapping[str, Term]
    diagnostics: Mapping[str, PerToken] = field(default_factory=dict)

    @property
    def support(self) -> Support | None:
        """The teacher scores every sample must carry."""
        return self.needs.support

    def stats(self, context: Context) -> dict[str, torch.Tensor]:
        """Return each diagnostic per token, shape R, without gradient."""
        with torch.no_grad():
            return {name: diagnostic(context) for name, diagnostic in self.diagnostics.items()}

    def terms(self, context: Context, stats: Mapping[str, torch.Tensor], state: State) -> dict[str, torch.Tensor]:
        """Return each weighted term per token, shape R; their sum over a step's tokens is its loss."""
        return {
            name: term.coefficient * term.weight(context).detach() * term.signal(context)
            for name, term in self.components.items()
        }

    def update(self, state: State, stats: Mapping[str, float]) -> State:
        """Return the state after a step whose diagnostics averaged to `stats`; a plain composition has none."""
        return state
