"""The conservation law: no attempt and no token is lost, and none is counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from asyncopd.records import AttemptState
from asyncopd.scheduler.attempts import Attempt


class ConservationError(AssertionError):
    """The two sides of the law differ; the message gives both."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A balance: `admitted = Σ attempts` and `generated = trained + Σ masked + Σ dropped_tokens + held`.

    `attempts` counts them by state, `dropped` splits the dropped ones by reason. Tokens are counted at
    different places: `generated` as engines returned them, `held` as finished trajectories and rolling
    attempts hold them, `trained` and `masked` as the learner reported them.
    """

    admitted: int
    attempts: dict[str, int]
    dropped: dict[str, int]
    generated: int
    trained: int
    masked: dict[str, int]
    dropped_tokens: dict[str, int]
    held: int

    @property
    def problems(self) -> list[str]:
        """What does not balance, a sentence a side."""
        problems = []
        counted = sum(self.attempts.values())
        if self.admitted != counted:
            problems.append(f"{self.admitted} attempts were admitted, {counted} are in some state: {self.attempts}")
        masked, dropped = sum(self.masked.values()), sum(self.dropped_tokens.values())
        accounted = self.trained + masked + dropped + self.held
        if self.generated != accounted:
            problems.append(
                f"engines generated {self.generated} tokens, {accounted} are accounted for: trained {self.trained} "
                f"+ masked {self.masked} + dropped {self.dropped_tokens} + held {self.held}"
            )
        return problems

    @property
    def holds(self) -> bool:
        return not self.problems

    def check(self) -> None:
        """Raise `ConservationError` unless the law holds."""
        if self.problems:
            raise ConservationError("; ".join(self.problems))

    def to_json(self) -> dict[str, Any]:
        """Return the balance as JSON types, with `holds`."""
        return {**msgspec.to_builtins(self), "holds": self.holds}


@dataclass
class Books:
    """Sums over the attempts that are settled for good; the others still count one by one."""

    generated: int = 0
    settled: int = 0
    trained: int = 0
    masked: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_tokens: Counter[str] = field(default_factory=Counter)

    def settle(self, attempt: Attempt) -> None:
        """Enter an attempt whose training is durable."""
        assert attempt.state is AttemptState.TRAINED
        self.settled += 1
        self.trained += attempt.trained
        self.masked.update(attempt.masked)

    def drop(self, attempt: Attempt) -> None:
        """Enter a dropped attempt."""
        self.dropped[attempt.dropped] += 1
        self.dropped_tokens[attempt.dropped] += attempt.held

    def balance(self, admitted: int, live: Iterable[Attempt]) -> Ledger:
        """Return the balance of these books and the attempts that are still live."""
        states = Counter({AttemptState.TRAINED: self.settled, AttemptState.DROPPED: self.dropped.total()})
        trained, held, masked = self.trained, 0, Counter(self.masked)
        for attempt in live:
            states[attempt.state] += 1
            if attempt.state is AttemptState.TRAINED:
                trained += attempt.trained
                masked.update(attempt.masked)
            else:
                held += attempt.held
        return Ledger(
            admitted=admitted,
            attempts={state.value: states[state] for state in AttemptState},
            dropped=dict(self.dropped),
            generated=self.generated,
            trained=trained,
            masked={reason: tokens for reason, tokens in masked.items() if tokens},
            dropped_tokens={reason: tokens for reason, tokens in self.dropped_tokens.items() if tokens},
            held=held,
        )
