"""The calculator: short questions, answered with a calculator and a price list that only a tool can read."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from asyncopd.records import (
    Demonstration,
    Message,
    Observation,
    Outcome,
    Step,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
)
from asyncopd_envs.calculator.arithmetic import ArithmeticFault, evaluate, written
from asyncopd_envs.calculator.expert import ERROR, say
from asyncopd_envs.calculator.options import Latency, Options
from asyncopd_envs.calculator.tasks import generate

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def _spec(name: str, description: str, argument: str, meaning: str) -> ToolSpec:
    schema = {"type": "string", "description": meaning}
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: schema},
            "required": [argument],
            "additionalProperties": False,
        },
    )


CALC = _spec("calc", "Work out an arithmetic expression.", "expression", "numbers, + - * / and brackets")
PRICE = _spec("price", "Look up the price of one item.", "item", "the item's name, in the singular")


class CalculatorTool:
    """One of the two tools; malformed arguments are answered with a text that begins with `error`."""

    def __init__(self, spec: ToolSpec, answer: Callable[[str], str], wait: Callable[[], Any]) -> None:
        self.spec = spec
        self._answer = answer
        self._wait = wait
        (self._argument,) = spec.parameters["required"]

    async def __call__(self, arguments: Mapping[str, Any]) -> str:
        await self._wait()
        text = arguments.get(self._argument)
        if not isinstance(text, str) or len(arguments) != 1:
            return f"{ERROR}: bad {self._argument}"
        return self._answer(text)


class Calculator:
    """Implements `asyncopd.seams.ExpertEnvironment`; options are those of `Options`.

    The reward is 1 if the last number of the final message is the answer, else 0. Raises
    `pydantic.ValidationError`, which is a `ValueError`, for options that are wrong.
    """

    def __init__(self, **options: Any) -> None:
        self.options = Options(**options)
        self.tools = {
            "calc": CalculatorTool(CALC, self._calc, self._wait),
            "price": CalculatorTool(PRICE, self._price, self._wait),
        }
        self._task: Task | None = None
        self._rng = random.Random()
        self._judged = False

    @staticmethod
    def tasks(split: str, **options: Any) -> list[Task]:
        """Return the tasks of `train` or `test`. Raises `ValueError` for another split, or wrong options."""
        chosen = Options(**options)
        return generate(split, chosen.test_tasks if split == "test" else chosen.train_tasks)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Pose `task`. `seed` decides how long its tools take."""
        self._task, self._rng, self._judged = task, random.Random(seed), False
        messages = [Message(role="user", content=task.data["question"])]
        if self.options.instructions:
            messages.insert(0, Message(role="system", content=self.options.instructions))
        return Observation(messages=messages, privileged=_worked(task))

    async def step(self, action: Message, results: Sequence[ToolResult] = ()) -> Step:
        """Judge a message without calls; results of calls speak for themselves."""
        return Step() if action.tool_calls else self._judge(action)

    async def finish(self, trajectory: Trajectory) -> Step:
        """Judge the last message of an agent that ran its tools by itself."""
        if self._judged or not trajectory.turns or trajectory.outcome == Outcome.TRUNCATED:
            return Step()
        return self._judge(trajectory.turns[-1].messages[0])

    async def close(self) -> None:
        """Nothing to release."""

    def expert(self, task: Task, history: Sequence[Message], seed: int) -> Demonstration:
        """Return what the scripted expert says next, see `expert.py`."""
        return say(task, history, seed, self.options.expert_errors)

    def _judge(self, message: Message) -> Step:
        assert self._task is not None, "an episode begins with reset"
        self._judged = True
        numbers = NUMBER.findall(message.content)
        if not numbers:
            return Step(rewards={"answer": 0.0}, done=True, outcome=Outcome.MALFORMED)
        right = Fraction(numbers[-1].replace(",", "")) == Fraction(self._task.data["answer"])
        outcome = Outcome.SUCCESS if right else Outcome.FAILURE
        return Step(rewards={"answer": float(right)}, done=True, outcome=outcome)

    def _calc(self, expression: str) -> str:
        try:
            return written(evaluate(expression))
        except ArithmeticFault as fault:
            return f"{ERROR}: {fault}"

    def _price(self, item: str) -> str:
        assert self._task is not None, "an episode begins with reset"
        prices = self._task.data["prices"]
        return str(prices[item]) if item in prices else f"{ERROR}: unknown item"

    async def _wait(self) -> None:
        latency = self.options.tool_latency_s
        if latency is not None:
            await asyncio.sleep(_seconds(latency, self._rng))


def _seconds(latency: Latency, rng: random.Random) -> float:
    return rng.lognormvariate(math.log(latency.mean) - latency.sigma**2 / 2, latency.sigma)


def _worked(task: Task) -> list[Message]:
    """Return the same conversation as it should go: what a teacher sees before it reads the student's."""
    messages = [Message(role="user", content=task.data["question"])]
    for number, call in enumerate(task.data["calls"]):
        asked = ToolCall(id=f"worked_{number}", name=call["name"], arguments=call["arguments"])
        messages.append(Message(role="assistant", content="", tool_calls=[asked]))
        result = str(call["result"])
        messages.append(Message(role="tool", content=result, tool_call_id=asked.id, name=asked.name))
    return [*messages, Message(role="assistant", content=str(task.data["answer"]))]
