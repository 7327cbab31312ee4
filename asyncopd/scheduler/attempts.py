"""One try at a task, from its admission until its training is durable or it is dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncopd.records import AttemptReport, AttemptState, TrajectoryMeta, Version

RUNNING = (AttemptState.ADMITTED, AttemptState.ROLLING)


@dataclass
class Attempt:
    """What is known of an attempt; steps are optimizer steps.

    oldest      v_first: a lower bound on the step of all its tokens, exact from the first generation on
    generated   tokens that engines returned for it
    unwanted    its group was given up while it was in flight: it is dropped as soon as it ends
    scores_due  how often the teacher may still answer for it
    trained, masked  its tokens by fate, while it is trained
    interrupted a rollback ended it in the middle of its episode, of which the runtime may not know yet
    dropped     why it was dropped, once it was
    """

    id: int
    group: int
    member: int
    engine: str
    oldest: int
    max_staleness: int
    state: AttemptState = AttemptState.ADMITTED
    generated: int = 0
    meta: TrajectoryMeta | None = None
    scores: str | None = None
    scores_due: int = 0
    trained: int = 0
    masked: dict[str, int] = field(default_factory=dict)
    unwanted: bool = False
    interrupted: bool = False
    dropped: str = ""

    @property
    def running(self) -> bool:
        return self.state in RUNNING

    @property
    def deadline(self) -> int:
        """The last step that may train on it."""
        return self.oldest + self.max_staleness

    @property
    def newest(self) -> int:
        """The greatest step among its tokens' versions; it has finished."""
        assert self.meta is not None
        return self.meta.last_step if self.meta.tokens.generated else self.oldest

    @property
    def mean_step(self) -> float:
        """The token-weighted mean step of its tokens' versions; it has finished."""
        assert self.meta is not None
        return self.meta.mean_step if self.meta.tokens.generated else float(self.oldest)

    @property
    def held(self) -> int:
        """Tokens it holds: as counted by its trajectory, and before there is one, as engines told them."""
        return self.generated if self.meta is None else self.meta.tokens.generated

    @property
    def payloads(self) -> tuple[str, ...]:
        """Keys under which something of it waits."""
        trajectory = () if self.meta is None else (self.meta.payload,)
        return trajectory if self.scores is None else (*trajectory, self.scores)

    def generate(self, tokens: int, first: Version, last: Version) -> None:
        """Take note of a generation of `tokens` tokens."""
        assert self.running, f"attempt {self.id} is {self.state} and generates"
        if tokens and not self.generated:
            assert first.step >= self.oldest, f"attempt {self.id} was served by {first}, below step {self.oldest}"
            self.oldest = first.step
        assert not tokens or self.oldest <= first.step <= last.step, f"attempt {self.id} went back to {first}"
        self.state = AttemptState.ROLLING
        self.generated += tokens

    def finish(self, meta: TrajectoryMeta) -> None:
        """Take note of its trajectory."""
        assert self.running, f"attempt {self.id} is {self.state} and finishes"
        assert meta.group == self.group, f"attempt {self.id} of group {self.group} finished in group {meta.group}"
        if meta.tokens.generated:
            assert self.oldest <= meta.first_step <= round(meta.mean_step, 6) <= meta.last_step, (
                f"attempt {self.id} began at step {self.oldest}; its tokens' steps are "
                f"{meta.first_step}, {meta.mean_step}, {meta.last_step} (least, mean, greatest)"
            )
        self.meta = meta
        self.state = AttemptState.SCORING if meta.tokens.trainable else AttemptState.READY

    def train(self, report: AttemptReport | None) -> None:
        """Take note of what the learner made of it; one that teaches nothing may go unreported."""
        assert self.state is AttemptState.LEASED and self.meta is not None
        if report is None:
            assert self.meta.tokens.trainable == 0, f"attempt {self.id} was leased, and the learner does not report it"
            self.trained, self.masked = 0, self.meta.tokens.masked
        else:
            self.trained, self.masked = report.trained, report.masked
        self.state = AttemptState.TRAINED

    def reopen(self) -> None:
        """Undo its lease or training, which was lost."""
        assert self.state in (AttemptState.LEASED, AttemptState.TRAINED)
        self.state, self.trained, self.masked = AttemptState.READY, 0, {}


@dataclass
class Attempts:
    """Every attempt that something may still happen to, in order of admission.

    `live` ones count; `late` ones are dropped or durably trained, and the runtime may still send what
    it did for them before it knew.
    """

    live: dict[int, Attempt] = field(default_factory=dict)
    late: dict[int, Attempt] = field(default_factory=dict)
    admitted: int = 0

    def admit(self, *, group: int, member: int, engine: str, oldest: int, max_staleness: int) -> Attempt:
        """Return a new attempt, numbered in order of admission from 0."""
        attempt = Attempt(self.admitted, group, member, engine, oldest, max_staleness)
        self.live[attempt.id] = attempt
        self.admitted += 1
        return attempt

    def find(self, number: int) -> Attempt:
        """Return the live or late attempt of that number."""
        attempt = self.live.get(number) or self.late.get(number)
        assert attempt is not None, f"attempt {number} was never started, or has ended for good"
        return attempt

    def forget(self, attempt: Attempt) -> None:
        """Count an attempt no more; it stays among the late ones while the runtime may speak of it."""
        self.live.pop(attempt.id, None)
        if attempt.scores_due or attempt.interrupted:
            self.late[attempt.id] = attempt
        else:
            self.late.pop(attempt.id, None)
