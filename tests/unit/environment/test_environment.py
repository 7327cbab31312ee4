"""What an author writes becomes an environment: tools, rewards, state, and a cleanup that always runs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from asyncopd.config.section import Section
from asyncopd.environment import Environment, ToolError, Unjudged, in_split, reward, tool
from asyncopd.environment.tools import as_text
from asyncopd.records import Message, Outcome, Task, Timings, ToolCall, Trajectory, Turn
from asyncopd.rollout.tools import call_tools

TASK = Task(id="t", domain="d", data={"city": "Bern", "people": 134_000})


class Cities(Environment):
    """Knows how many people live in a city."""

    class Options(Section):
        strict: bool = True

    @staticmethod
    def make_tasks(split: str, options: Any) -> list[Task]:
        tasks = [Task(id=f"city-{n}", domain="d", data={}) for n in range(64)]
        return [task for task in tasks if in_split(task.id, split)]

    def setup(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table city (name text, people integer)")
        self.database.execute("insert into city values (?, ?)", (self.task.data["city"], self.task.data["people"]))
        self.threads = {threading.get_ident()}
        self.cleaned = 0

    def prompt(self) -> str:
        return f"How many people live in {self.task.data['city']}?"

    @tool
    def population(self, city: str, unit: Annotated[Literal["one", "thousand"], Field(description="of what")] = "one"):
        """Look up a city.

        Give its name in English.

        Args:
            city: the city's name
        """
        self.threads.add(threading.get_ident())
        row = self.database.execute("select people from city where name = ?", (city,)).fetchone()
        if row is None:
            raise ToolError(f"there is no city {city!r}")
        return {"people": row[0] // (1000 if unit == "thousand" else 1)}

    @tool(name="copy")
    async def duplicate(self, json: int, model_config: str = "x") -> list[int]:
        """Twice the same."""
        return [json, json]

    @reward
    def right(self) -> bool:
        return str(self.task.data["people"]) in self.history[-1].content

    @reward(weight=-0.1, per="turn")
    def asked(self, action: Message, results: list) -> float:
        return float(len(action.tool_calls))

    def cleanup(self) -> None:
        self.database.close()
        self.cleaned += 1


def said(content: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, tool_calls=list(calls))


def ended(turns: list[list[Message]], outcome: Outcome = Outcome.FAILURE) -> Trajectory:
    return Trajectory(
        task=TASK,
        attempt=0,
        prompt=[Message(role="user", content="?")],
        segments=[],
        turns=[
            Turn(agent="agent", messages=m, tool_calls=[], rewards={}, timings=Timings(), stop_reason="stop")
            for m in turns
        ],
        outcome=outcome,
        reward=0.0,
    )


async def answer(environment: Environment, **arguments: Any) -> str:
    call = ToolCall(id="c", name="population", arguments=arguments)
    (result,) = await call_tools(environment.tools, [call], timeout_s=5)
    return result.content


def test_signature_and_docstring_become_what_the_agent_is_told() -> None:
    spec = Cities().tools["population"].spec
    assert spec.description == "Look up a city.\n\nGive its name in English."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the city's name"},
            "unit": {"type": "string", "enum": ["one", "thousand"], "default": "one", "description": "of what"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


async def test_an_episode_is_lived_rewarded_and_cleaned_up() -> None:
    environment = Cities()
    observation = await environment.reset(TASK, seed=3)
    assert observation.messages == [Message(role="user", content="How many people live in Bern?")]
    call = ToolCall(id="c", name="population", arguments={"city": "Bern"})
    results = await call_tools(environment.tools, [call], 5)
    assert json.loads(results[0].content) == {"people": 134_000}
    step = await environment.step(said("", call), results)
    assert (step.done, step.rewards) == (False, {"asked": -0.1})
    step = await environment.step(said("134000"))
    assert step.done and step.rewards == {"asked": 0.0}
    end = await environment.finish(ended([[said("", call), results[0].message()], [said("134000")]]))
    assert end.rewards == {"right": 1.0} and end.outcome == Outcome.FAILURE  # 0.9 in all
    assert environment.earned == pytest.approx(0.9)
    assert environment.cleaned == 1
    await environment.close()
    assert environment.cleaned == 1
    assert len(environment.threads) == 1 and threading.get_ident() not in environment.threads


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        ({}, "error: city: Field required"),
        ({"city": "Rome"}, "error: there is no city 'Rome'"),
        ({"city": "Bern", "unit": "dozen"}, "error: unit: Input should be 'one' or 'thousand'"),
        ({"city": "Bern", "colour": 1}, "error: colour: Extra inputs are not permitted"),
        ({"city": 7}, "error: city: Input should be a valid string"),
        ({"city": "Bern", "unit": "thousand"}, '{"people": 134}'),
    ],
)
async def test_wrong_arguments_are_answered_by_name(arguments: dict[str, Any], reply: str) -> None:
    environment = Cities()
    await environment.reset(TASK, 0)
    assert await answer(environment, **arguments) == reply
    await environment.close()


async def test_parameters_may_be_named_like_anything() -> None:
    environment = Cities()
    call = ToolCall(id="c", name="copy", arguments={"json": 2, "model_config": "y"})
    (result,) = await call_tools(environment.tools, [call], 5)
    assert result.content == "[2, 2]"


async def test_an_episode_cut_off_is_cleaned_up_by_the_next_and_by_close() -> None:
    environment = Cities()
    await environment.reset(TASK, 0)
    database = environment.database
    await environment.reset(TASK, 1)
    with pytest.raises(sqlite3.ProgrammingError):
        database.execute("select 1")
    await environment.close()
    assert environment.cleaned == 1


async def test_a_truncated_episode_is_rewarded_and_stays_truncated() -> None:
    environment = Cities()
    await environment.reset(TASK, 0)
    end = await environment.finish(ended([[said("134000")]], Outcome.TRUNCATED))
    assert end.outcome is None and end.rewards == {"right": 1.0}
    await environment.close()


async def test_what_cannot_be_judged_is_no_failure() -> None:
    class Undecided(Cities):
        @reward
        async def taste(self) -> float:
            raise Unjudged("the judge does not answer")

    environment = Undecided()
    await environment.reset(TASK, 0)
    end = await environment.finish(ended([[said("134000")]]))
    assert end.outcome == Outcome.INFRASTRUCTURE_ERROR and environment.cleaned == 1
    await environment.close()


async def test_a_user_may_answer_and_end_the_episode() -> None:
    class Talkative(Cities):
        def respond(self, action: Message) -> str | None:
            return None if "bye" in action.content else "And then?"

    environment = Talkative()
    await environment.reset(TASK, 0)
    step = await environment.step(said("hello"))
    assert (step.done, step.messages) == (False, [Message(role="user", content="And then?")])
    assert [message.role for message in environment.history] == ["user", "assistant", "user"]
    assert (await environment.step(said("bye"))).done
    await environment.close()


async def test_a_blocking_tool_holds_up_its_own_episode_only() -> None:
    class Slow(Cities):
        @tool
        def nap(self, seconds: float) -> str:
            """Sleep."""
            time.sleep(seconds)
            return "rested"

    slow, other = Slow(), Cities()
    await asyncio.gather(slow.reset(TASK, 0), other.reset(TASK, 0))
    nap = ToolCall(id="n", name="nap", arguments={"seconds": 0.5})
    napping = asyncio.create_task(call_tools(slow.tools, [nap], timeout_s=0.05))
    began = time.monotonic()
    assert await answer(other, city="Bern", unit="thousand") == '{"people": 134}'
    assert time.monotonic() - began < 0.3
    (result,) = await napping
    assert result.content == "error: no answer within 0.05 s"
    again = ToolCall(id="n", name="nap", arguments={"seconds": 0})
    assert (await call_tools(slow.tools, [again], timeout_s=0.3))[0].content == "rested"
    await other.close()


def test_splits_are_disjoint_and_whole() -> None:
    train, test = Cities.tasks("train"), Cities.tasks("test")
    assert len(train) + len(test) == 64 and test
    assert not {task.id for task in train} & {task.id for task in test}
    with pytest.raises(ValueError, match="no split 'dev'"):
        Cities.tasks("dev")


def test_unknown_options_two_tools_of_a_name_and_untyped_parameters_are_refused() -> None:
    with pytest.raises(ValidationError, match="strictness"):
        Cities(strictness=1)

    class Twice(Cities):
        @tool(name="population")
        def other(self) -> str:
            """Another."""
            return ""

    with pytest.raises(TypeError, match="Twice has two tools named 'population'"):
        Twice()

    class Untyped(Cities):
        @tool
        def anything(self, what):
            """Anything."""

    with pytest.raises(TypeError, match="anything: parameter 'what' needs a type"):
        Untyped()


@pytest.mark.parametrize(
    ("result", "text"),
    [("a", "a"), (None, ""), (b"\xff a", "� a"), ({"ü": [1]}, '{"ü": [1]}'), (float("nan"), "NaN"), ({1, 2}, None)],
)
def test_any_result_becomes_text(result: Any, text: str | None) -> None:
    assert as_text(result) == (text if text is not None else f'"{result}"')


def test_an_environment_without_a_prompt_is_refused_when_it_is_made() -> None:
    class Silent(Environment):
        @staticmethod
        def make_tasks(split: str, options: Any) -> list[Task]:
            return []

    with pytest.raises(TypeError, match=r"abstract class Silent .*prompt"):
        Silent()
