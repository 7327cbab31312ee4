"""Lives episodes of the python environment without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.boxes import use

from asyncopd.records import Message, Outcome, Step, Task, Timings, ToolCall, Trajectory, Turn
from asyncopd.rollout.tools import call_tools
from asyncopd_envs.python_code.env import PythonCode
from asyncopd_envs.python_code.family import FUNCTION


class Episode:
    """An environment in which one says things, or calls tools, and then ends."""

    def __init__(self, environment: PythonCode, task: Task) -> None:
        self.environment = environment
        self.task = task
        self.turns: list[list[Message]] = []
        self.prompt: list[Message] = []
        self.privileged: list[Message] = []
        self.done = False

    async def begin(self) -> Episode:
        observation = await self.environment.reset(self.task, 0)
        self.prompt, self.privileged = observation.messages, observation.privileged
        return self

    @property
    def history(self) -> list[Message]:
        return [*self.prompt, *(message for turn in self.turns for message in turn)]

    async def act(self, action: Message) -> str:
        results = await call_tools(self.environment.tools, action.tool_calls, 30)
        step = await self.environment.step(action, results)
        self.turns.append([action, *(result.message() for result in results)])
        self.done = step.done
        return "\n".join(result.content for result in results)

    async def say(self, text: str) -> str:
        return await self.act(Message(role="assistant", content=text))

    async def call(self, name: str, code: str) -> str:
        calls = [ToolCall(id="c", name=name, arguments={"code": code})]
        return await self.act(Message(role="assistant", content="", tool_calls=calls))

    async def end(self, outcome: Outcome = Outcome.FAILURE) -> Step:
        turns = [
            Turn(agent="agent", messages=turn, tool_calls=[], rewards={}, timings=Timings(), stop_reason="stop")
            for turn in self.turns
        ]
        return await self.environment.finish(
            Trajectory(
                task=self.task, attempt=0, prompt=self.prompt, segments=[], turns=turns, outcome=outcome, reward=0.0
            )
        )


@pytest.fixture
def task() -> Task:
    """Return the vowels of a text in their order."""
    parameters = {"kept": "vowels", "changed": "in the order of the text", "between": ""}
    return Task(id="vowels", domain="d", data={"family": "pick_characters", "parameters": parameters})


@pytest.fixture
def right() -> str:
    return f"def {FUNCTION}(text):\n    return ''.join(c for c in text if c in 'aeiouAEIOU')\n"


@pytest.fixture
async def environment(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PythonCode]:
    use("namespaces", monkeypatch)
    made = PythonCode(limits={"wall_s": 1, "output_kib": 64})
    yield made
    await made.close()


@pytest.fixture
async def episode(environment: PythonCode, task: Task) -> Episode:
    return await Episode(environment, task).begin()
