"""A world around the scheduler: engines, a teacher and a learner that obey it, in any order of events."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncopd.config.scheduler import SchedulerSection
from asyncopd.records import AttemptReport, Outcome, TokenCounts, TrajectoryMeta, Version
from asyncopd.scheduler import commands as do
from asyncopd.scheduler import events as on
from asyncopd.scheduler.scheduler import Scheduler

Move = tuple[str, Any]


@dataclass
class Rollout:
    """An episode under way on `engine`; `began` is the version its present turn began with, `tokens` their steps."""

    order: do.StartAttempt
    engine: str
    began: Version
    tokens: list[int] = field(default_factory=list)


class World:
    """Obeys commands; each thing it could do next is a move. Nothing happens except by `play`."""

    def __init__(
        self, *, steps: int = 4, tasks: int = 5, seed: int = 0, max_concurrent: int = 64, checkpoint_every: int = 2,
        engines: int = 1, **section: Any,
    ) -> None:  # fmt: skip
        self.section = SchedulerSection(**{"batch_size": 2, **section})
        self.new_scheduler: Callable[[], Scheduler] = lambda: Scheduler(
            self.section, steps=steps, task_count=tasks, seed=seed, max_concurrent=max_concurrent,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip
        self.scheduler = self.new_scheduler()
        self.log: list[tuple[on.AnyEvent, tuple[do.Command, ...]]] = []
        self.engines: dict[str, Version | None] = {f"student-{i}": None for i in range(engines)}
        self.commits: dict[str, list[Version]] = {name: [] for name in self.engines}
        self.rolling: dict[int, Rollout] = {}
        self.ended: dict[int, Rollout] = {}
        self.scoring: dict[int, str] = {}
        self.learner: list[do.Command] = []
        self.late: list[on.AnyEvent] = []
        self.payloads: set[str] = set()
        self.released: set[str] = set()
        self.left_behind: set[str] = set()
        self.history: list[do.TrainStep] = []
        self.generated = 0
        self.version = self.published = Version(0, 0)
        self.replacements = 0
        self.durable = 0
        self.end: do.Command | None = None
        self.stopped = False

    # --- obeying -----------------------------------------------------------------------------------

    def send(self, event: on.AnyEvent) -> tuple[do.Command, ...]:
        commands = self.scheduler.apply(event)
        self.log.append((event, commands))
        for command in commands:
            self.obey(command)
        return commands

    def obey(self, command: do.Command) -> None:
        assert self.end is None, f"{command} after {self.end}"
        match command:
            case do.StartAttempt():
                assert self.engines[command.engine] == command.min_version
                self.rolling[command.attempt] = Rollout(command, command.engine, command.min_version)
            case do.ScoreAttempt():
                assert command.payload in self.payloads
                self.scoring[command.attempt] = command.payload
            case do.ReleasePayloads():
                self.payloads -= set(command.keys)
                self.released |= set(command.keys)
            case do.TrainStep() | do.PublishWeights() | do.SaveCheckpoint():
                self.learner.append(command)
            case do.FinishRun() | do.FailRun():
                self.end = command
                owed = {str(number) for number in self.scheduler._state.attempts.late}
                self.left_behind = {key for key in self.payloads if key.rpartition("/")[2] not in owed}

    # --- moves -------------------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """Return every move that brings the run on; failures, losses and rollbacks are not among them."""
        moves: list[Move] = [("start_engine", name) for name, version in self.engines.items() if version is None]
        moves += [("commit", name) for name, pending in self.commits.items() if pending]
        for number, rollout in self.rolling.items():
            if rollout.engine in self.able(rollout):
                moves.append(("turn", number))
            elif self.able(rollout):
                moves.append(("move", number))
            if rollout.tokens:
                moves.append(("finish", number))
        moves += [("score", number) for number in self.scoring]
        moves += [("learn", None)] if self.learner else []
        return moves + [("arrive", i) for i in range(len(self.late))]

    def play(self, move: Move) -> tuple[do.Command, ...]:
        name, argument = move
        method = getattr(self, name)
        return method() if argument is None else method(argument)

    def start_engine(self, name: str = "student-0") -> tuple[do.Command, ...]:
        """An engine starts with the initial weights."""
        self.engines[name] = Version(0, 0)
        return self.send(on.EngineReady(time=0, engine=name, version=Version(0, 0)))

    def lose_engine(self, name: str, chance: random.Random | None = None) -> None:
        """An engine dies. By chance its episodes go on elsewhere, and one that has caught up takes its place."""
        self.engines[name] = None
        self.commits[name].clear()
        self.send(on.EngineLost(time=0, engine=name))
        for number in [n for n, rollout in self.rolling.items() if rollout.engine == name]:
            if chance is None or chance.random() < 0.3:
                self.fail(number, "engine_lost")
        if chance is not None and chance.random() < 0.7:
            self.replacements += 1
            replacement = f"{name}.{self.replacements}"
            self.engines[replacement], self.commits[replacement] = self.published, []
            self.send(on.EngineReady(time=0, engine=replacement, version=self.published))

    def able(self, rollout: Rollout) -> list[str]:
        """Return the engines that may go on with an episode: its versions never go back."""
        return [name for name, version in self.engines.items() if version is not None and version >= rollout.began]

    def move(self, number: int) -> None:
        """An episode goes on elsewhere."""
        rollout = self.rolling[number]
        rollout.engine = self.able(rollout)[0]

    def commit(self, name: str = "student-0") -> tuple[do.Command, ...]:
        version = self.commits[name].pop(0)
        if self.engines[name] is None:
            return ()
        self.engines[name] = version
        return self.send(on.EngineReady(time=0, engine=name, version=version))

    def turn(self, number: int, tokens: int = 4) -> tuple[do.Command, ...]:
        """An engine returns a turn, half of it at the version it began with, half at that of now."""
        rollout = self.rolling[number]
        last = self.engines[rollout.engine]
        assert last is not None
        rollout.tokens += [rollout.began.step] * (tokens // 2) + [last.step] * (tokens - tokens // 2)
        event = on.TurnGenerated(time=0, attempt=number, tokens=tokens, first=rollout.began, last=last)
        rollout.began = last
        self.generated += tokens
        return self.send(event)

    def finish(self, number: int, trainable: bool = True) -> tuple[do.Command, ...]:
        rollout = self.ended[number] = self.rolling.pop(number)
        payload = f"trajectory/{number}"
        self.payloads.add(payload)
        return self.send(on.RolloutFinished(time=0, meta=self.meta(rollout, payload, trainable)))

    def meta(self, rollout: Rollout, payload: str, trainable: bool) -> TrajectoryMeta:
        tokens, total = rollout.tokens, len(rollout.tokens)
        counts = TokenCounts(prompt=3, trainable=total - 1, masked={"infrastructure": 1})
        return TrajectoryMeta(
            attempt=rollout.order.attempt, task=f"task-{rollout.order.task}", domain="d", group=rollout.order.group,
            tokens=counts if trainable else TokenCounts(prompt=3, trainable=0, masked={"infrastructure": total}),
            first_step=min(tokens), last_step=max(tokens), mean_step=sum(tokens) / total, reward=1.0,
            outcome=Outcome.SUCCESS, payload=payload,
        )  # fmt: skip

    def fail(self, number: int, reason: str = "tool_server") -> tuple[do.Command, ...]:
        self.rolling.pop(number)
        return self.send(on.RolloutFailed(time=0, attempt=number, reason=reason))

    def score(self, number: int) -> tuple[do.Command, ...]:
        self.payloads.add(key := f"scores/{number}")
        assert self.scoring.pop(number) in self.payloads
        return self.send(on.Scored(time=0, attempt=number, payload=key))

    def learn(self) -> tuple[do.Command, ...]:
        """The learner's process executes its next command."""
        command = self.learner.pop(0)
        if isinstance(command, do.PublishWeights):
            assert command.version == self.version
            self.published = command.version
            for pending in self.commits.values():
                pending.append(command.version)
            return ()
        if isinstance(command, do.SaveCheckpoint):
            assert command.step == self.version.step
            self.durable = command.step
            return self.send(on.CheckpointSaved(time=0, step=command.step))
        assert isinstance(command, do.TrainStep) and command.step == self.version.step == len(self.history)
        for member in command.members:
            assert member.trajectory in self.payloads
            assert member.scores is None or member.scores in self.payloads
        self.history.append(command)
        self.version = Version(self.version.timeline, command.step + 1)
        return self.send(
            on.StepTrained(time=0, step=command.step, attempts=tuple(self.report(m.attempt) for m in command.members))
        )

    def report(self, number: int) -> AttemptReport:
        total = len(self.ended[number].tokens)
        return AttemptReport(
            attempt=number, domain="d", trained=total - 1, masked={"infrastructure": 1}, freshness=1.0,
            lag_mean=0.0, lag_max=0, rollout_drift=0.0,
        )  # fmt: skip

    def arrive(self, index: int) -> tuple[do.Command, ...]:
        """An event of before a rollback arrives after it."""
        event = self.late.pop(index)
        if isinstance(event, on.TurnGenerated):
            self.generated += event.tokens
        if isinstance(event, on.RolloutFinished):
            self.payloads.add(event.meta.payload)
        return self.send(event)

    def roll_back(self, chance: random.Random) -> tuple[do.Command, ...]:
        """Learner, rollouts and scoring are lost; some of what they sent is still under way."""
        for number, rollout in self.rolling.items():
            if rollout.tokens and chance.random() < 0.5:
                version = rollout.began
                self.late.append(on.TurnGenerated(time=0, attempt=number, tokens=1, first=version, last=version))
            elif rollout.tokens and chance.random() < 0.5:
                self.late.append(on.RolloutFinished(time=0, meta=self.meta(rollout, f"trajectory/{number}", True)))
            elif chance.random() < 0.5:
                self.late.append(on.RolloutFailed(time=0, attempt=number, reason="aborted"))
        for number in self.scoring:
            if chance.random() < 0.5:
                self.payloads.add(f"scores/{number}")
                self.late.append(on.Scored(time=0, attempt=number, payload=f"scores/{number}"))
        for name, pending in self.commits.items():
            self.late += [on.EngineReady(time=0, engine=name, version=version) for version in pending[:1]]
            self.engines[name] = None if chance.random() < 0.5 else self.engines[name]
            pending.clear()
        self.rolling, self.scoring, self.learner, self.end = {}, {}, [], None
        del self.history[self.durable :]
        self.version = Version(self.version.timeline + 1, self.durable)
        return self.send(on.RolledBack(time=0, timeline=self.version.timeline, step=self.durable))

    def lags(self, command: do.TrainStep) -> list[int]:
        """Return the lag of every token of the members of a step."""
        return [command.step - step for member in command.members for step in self.ended[member.attempt].tokens]

    def complete(self, *numbers: int) -> tuple[do.Command, ...]:
        """Take attempts from their admission to readiness; return the commands of the last event."""
        commands: tuple[do.Command, ...] = ()
        for number in numbers:
            self.turn(number)
            self.finish(number)
            commands = self.score(number)
        return commands

    def run(
        self, chance: random.Random, *, failures: int = 0, rollbacks: int = 0, losses: int = 0, stops: int = 0
    ) -> World:
        """Play random moves to the end; some attempts are slow, and so many things go wrong on the way."""
        troubles = ["fail"] * failures + ["roll_back"] * rollbacks + ["lose_engine"] * losses + ["stop"] * stops
        chance.shuffle(troubles)
        while self.end is None or self.late or self.stopped:
            if self.end is not None and self.stopped:
                self.stopped = False
                self.roll_back(chance)
            elif troubles and chance.random() < 0.03:
                self.trouble(troubles.pop(), chance)
            else:
                moves = self.moves()
                assert moves, f"deadlock: {self.scheduler.waiting()}"
                slow = [m for m in moves if m[0] in ("turn", "finish") and m[1] % 5 == 0 and chance.random() < 0.98]
                self.play(chance.choice([move for move in moves if move not in slow] or moves))
        return self

    def trouble(self, kind: str, chance: random.Random) -> None:
        if kind == "roll_back":
            self.roll_back(chance)
        elif kind == "stop":
            self.stopped = self.end is None
            self.send(on.StopRequested(time=0, reason="interrupted"))
        elif kind == "fail" and self.rolling:
            self.fail(chance.choice(list(self.rolling)))
        elif kind == "lose_engine":
            self.lose_engine(chance.choice(list(self.engines)), chance)


@pytest.fixture(scope="session")
def world() -> type[World]:
    return World
