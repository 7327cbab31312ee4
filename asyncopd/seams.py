"""Every protocol of the project, on one page.

Rooms meet only here: an implementation of a seam never imports another. Awaitable methods take
deadlines as absolute times of the running loop's clock (seconds) wherever they could wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from asyncopd.records import (
    Demonstration,
    EngineCapabilities,
    GenerateRequest,
    Generation,
    Manifest,
    Message,
    Observation,
    PublishReport,
    ScoreRequest,
    Scores,
    SendOrder,
    Step,
    Support,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Version,
    WeightFile,
)

if TYPE_CHECKING:
    import torch


# --- engines ---------------------------------------------------------------------------------------


class Generator(Protocol):
    """Generates, with one engine or many. A request that outlives its deadline raises `DeadlineExceeded`."""

    name: str
    capabilities: EngineCapabilities

    @property
    def version(self) -> Version: ...

    async def generate(self, request: GenerateRequest) -> Generation: ...


class Engine(Generator, Protocol):
    """One engine. `probe` returns once it answers, and raises `EngineDied` where it never will again."""

    @property
    def receiver(self) -> WeightReceiver: ...

    async def probe(self) -> None: ...

    async def close(self) -> None: ...


# --- weights ---------------------------------------------------------------------------------------


class WeightSource(Protocol):
    """A picklable handle on a learner's weights; `send` runs where the learner runs, and says what it sent."""

    async def send(self, order: SendOrder) -> WeightFile: ...


class WeightReceiver(Protocol):
    """The side of engine `name` in an update, called in this order; `thaw` follows a failure too.

    `prepare` fetches and verifies while the engine generates, so that `receive`, behind the freeze, only loads.
    """

    name: str

    async def prepare(self, manifest: Manifest) -> None: ...

    async def freeze(self) -> None: ...

    async def receive(self, manifest: Manifest) -> None: ...

    async def commit(self, version: Version) -> None: ...

    async def thaw(self) -> None: ...


class WeightSync(Protocol):
    """Owns the whole update protocol; drives the sender and every receiver concurrently.

    `catch_up` brings an engine that came later, or missed an update, to the newest version.
    """

    async def publish(self, version: Version, source: WeightSource) -> PublishReport: ...

    async def catch_up(self, receiver: WeightReceiver) -> Version | None: ...

    def close(self) -> None: ...


# --- agents and environments -----------------------------------------------------------------------


class Environment(Protocol):
    """A world of tasks with tools; one instance serves one episode after another, never two at once.

    `step` is given the assistant message and the results of the tools it called. A class that
    implements it also offers `tasks(split) -> Sequence[Task]`, see `EnvironmentFactory`.
    """

    @property
    def tools(self) -> Mapping[str, Tool]: ...

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, action: Message, results: Sequence[ToolResult] = ()) -> Step: ...

    async def finish(self, trajectory: Trajectory) -> Step: ...

    async def close(self) -> None: ...


class Tool(Protocol):
    """A function an agent may call; raises whatever it likes."""

    spec: ToolSpec

    async def __call__(self, arguments: Mapping[str, Any]) -> str: ...


@runtime_checkable
class ExpertEnvironment(Environment, Protocol):
    """An environment that can be shown how to be solved.

    `expert` is given the conversation so far, which ends where the assistant speaks; equal arguments give
    equal answers.
    """

    def expert(self, task: Task, history: Sequence[Message], seed: int) -> Demonstration: ...


class EnvironmentFactory(Protocol):
    """What `environment.use` names: a class whose constructor takes the config's options."""

    def __call__(self, **options: Any) -> Environment: ...

    def tasks(self, split: str, **options: Any) -> Sequence[Task]:
        """Return the tasks of `train` or `test`, disjoint, in a fixed order. A class or static method."""
        ...


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """All that an agent needs to live one episode."""

    attempt: int
    task: Task
    environment: Environment
    generate: Callable[[list[int], int], Awaitable[Generation]]
    call_tools: Callable[[Sequence[ToolCall]], Awaitable[list[ToolResult]]]
    deadline: float
    seed: int


class Agent(Protocol):
    """Lives an episode and returns its record."""

    async def run(self, episode: Episode) -> Trajectory: ...


# --- teachers and scores ---------------------------------------------------------------------------


class Teacher(Protocol):
    """Scores sequences. `identity` names all that its numbers depend on: no two teachers share one.

    `supports` are the kinds it can answer, each with its greatest width. `view` says what the teacher
    would read to score each segment of a trajectory (a privileged one reads more than the student
    did); the scored rows of segment s are `s.trained_rows`, in order. `score` answers in order, and starts
    what `start` has not; it raises an `OSError` (time-outs and lost connections among them) where asking
    again may help, else any other.
    """

    @property
    def identity(self) -> str: ...

    @property
    def supports(self) -> tuple[Support, ...]: ...

    def view(self, trajectory: Trajectory, support: Support) -> list[ScoreRequest]: ...

    async def start(self) -> None: ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]: ...

    async def close(self) -> None: ...


class ScoreStore(Protocol):
    """Keeps encoded scores by key. Losing an entry is normal; returning a wrong one is not."""

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    async def put(self, items: Mapping[bytes, bytes]) -> None: ...

    async def stats(self) -> dict[str, float]: ...

    async def close(self) -> None: ...


# --- movement --------------------------------------------------------------------------------------


class Channel(Protocol):
    """An arrow of the flow: what is put is leased once, and gone when acknowledged."""

    async def put(self, item: Any, priority: int = 0, timeout_s: float | None = None) -> None: ...

    async def lease(self) -> Any: ...

    def ack(self, item: Any) -> None: ...


class PayloadStore(Protocol):
    """Where arrays wait. A key stays readable, from any process of the machine, until released."""

    async def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def release(self, key: str) -> None: ...


# --- learning --------------------------------------------------------------------------------------


class Objective(Protocol):
    """A loss the learner can sum without knowing its name; see `asyncopd.objectives`.

    `needs` names what the learner must compute once for it; `support` is what it needs of the teacher.
    `terms` returns a loss per trained token.
    """

    @property
    def needs(self) -> Any: ...

    @property
    def support(self) -> Support | None: ...

    def stats(self, context: Any) -> Any: ...

    def terms(self, context: Any, stats: Any, state: Any) -> Mapping[str, torch.Tensor]: ...

    def update(self, state: Any, stats: Any) -> Any: ...


class DeadlineExceeded(TimeoutError):
    """A wait ran past its deadline; the message says who waited on whom."""


class EngineDied(RuntimeError):
    """An engine serves nothing any more and never will; the message says which, and why if known.

    `partial` is what had come of the request that was waiting, where the engine tells before it finishes.
    """

    def __init__(self, message: str, partial: Generation | None = None) -> None:
        super().__init__(message)
        self.partial = partial
