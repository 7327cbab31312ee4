"""Episodes of the calculator: tools, judgement, the expert and its errors, latency, options."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import pytest

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import LossMask, Message, Outcome, Task, ToolCall, Trajectory
from asyncopd.rollout.expert import demonstrate
from asyncopd.rollout.tools import call_tools
from asyncopd.seams import ExpertEnvironment
from asyncopd.text.chat import Chat
from asyncopd_envs.calculator import env as module
from asyncopd_envs.calculator.env import Calculator
from asyncopd_envs.calculator.tokenizer import build


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return Calculator.tasks("train", train_tasks=160)


def of(tasks: list[Task], domain: str) -> Task:
    return next(task for task in tasks if task.domain == domain)


async def live(environment: Calculator, task: Task, seed: int = 0, train_on_errors: bool = False) -> Trajectory:
    chat = Chat(build(), [tool.spec for tool in environment.tools.values()])
    return await demonstrate(
        environment,
        chat,
        task,
        attempt=0,
        seed=seed,
        section=RolloutSection(),
        max_context=256,
        train_on_errors=train_on_errors,
    )


async def test_the_expert_solves_every_family_in_one_segment(tasks: list[Task]) -> None:
    environment = Calculator()
    assert isinstance(environment, ExpertEnvironment)
    for task in tasks:
        trajectory = await live(environment, task)
        assert (trajectory.outcome, trajectory.reward) == (Outcome.SUCCESS, 1.0)
        assert len(trajectory.turns) == len(task.data["calls"]) + 1
        assert (len(trajectory.segments), trajectory.drift) == (1, 0)


async def test_recovered_errors_are_answered_seen_and_not_taught(tasks: list[Task]) -> None:
    environment = Calculator(expert_errors={"kind": "recovered", "rate": 1.0})
    for task in tasks:
        trajectory = await live(environment, task)
        assert trajectory.outcome == Outcome.SUCCESS
        assert trajectory.turns[0].messages[1].content.startswith("error: ")
        (segment,) = trajectory.segments
        wrong = segment.loss_mask_T == LossMask.DEMONSTRATED_ERROR
        assert set(segment.turn_T[wrong]) == {0}
        assert set(segment.turn_T[segment.trained_rows]) == set(range(1, len(trajectory.turns)))


async def test_kept_errors_are_well_formed_and_lead_astray(tasks: list[Task]) -> None:
    environment = Calculator(expert_errors={"kind": "kept", "rate": 1.0})
    trajectories = [await live(environment, task, train_on_errors=True) for task in tasks]
    assert sum(trajectory.outcome == Outcome.SUCCESS for trajectory in trajectories) < len(tasks) / 8
    for trajectory in trajectories:
        (segment,) = trajectory.segments
        assert set(segment.loss_mask_T) == {LossMask.CONTEXT, LossMask.TRAIN}
        for turn in trajectory.turns[:-1]:
            assert turn.tool_calls and turn.tool_calls[0].error is None


async def test_the_share_of_errors_is_the_rate(tasks: list[Task]) -> None:
    environment = Calculator(expert_errors={"kind": "recovered", "rate": 0.25})
    history = [Message(role="user", content="any")]
    taught = [environment.expert(task, history, seed).teaches for task in tasks for seed in range(10)]
    assert 0.2 < 1 - sum(taught) / len(taught) < 0.3
    assert environment.expert(tasks[0], history, 3) == environment.expert(tasks[0], history, 3)


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ("{answer}", Outcome.SUCCESS),
        ("The answer is {answer}.", Outcome.SUCCESS),
        ("1 + 1 is {answer}.00", Outcome.SUCCESS),
        ("{answer} or 7", Outcome.FAILURE),
        ("1{answer}", Outcome.FAILURE),
        ("-{answer}", Outcome.FAILURE),
        ("I do not know", Outcome.MALFORMED),
        ("", Outcome.MALFORMED),
    ],
)
async def test_the_last_number_is_the_answer(tasks: list[Task], content: str, outcome: Outcome) -> None:
    environment = Calculator()
    await environment.reset(tasks[0], 0)
    step = await environment.step(Message(role="assistant", content=content.format(answer=tasks[0].data["answer"])))
    assert (step.done, step.outcome) == (True, outcome)
    assert step.rewards == {"answer": float(outcome == Outcome.SUCCESS)}


async def test_a_message_is_judged_once(tasks: list[Task]) -> None:
    """The loop asks at each step; for an agent that runs its own tools, only `finish` is asked."""
    environment = Calculator()
    lived = await live(environment, tasks[0])
    assert (await environment.finish(lived)).rewards == {}
    await environment.reset(tasks[0], 0)
    assert (await environment.finish(lived)).rewards == {"answer": 1.0}


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("calc", {"expression": "2*(3+4)"}, "14"),
        ("calc", {"expression": "2*"}, "error: bad expression"),
        ("calc", {"expression": "1/0"}, "error: division by zero"),
        ("calc", {"expression": 7}, "error: bad expression"),
        ("calc", {}, "error: bad expression"),
        ("calc", {"expression": "1", "item": "cup"}, "error: bad expression"),
        ("price", {"item": "yacht"}, "error: unknown item"),
        ("price", {"item": ["cup"]}, "error: bad item"),
    ],
)
async def test_tools_answer_bad_arguments_with_an_error(
    tasks: list[Task], name: str, arguments: dict[str, Any], answer: str
) -> None:
    environment = Calculator()
    await environment.reset(tasks[0], 0)
    (result,) = await call_tools(environment.tools, [ToolCall(id="0", name=name, arguments=arguments)], 1.0)
    assert (result.content, result.failed) == (answer, False)


async def test_prices_are_those_of_the_task(tasks: list[Task]) -> None:
    environment = Calculator()
    for task in tasks[:3]:
        await environment.reset(task, 0)
        for item, price in task.data["prices"].items():
            assert await environment.tools["price"]({"item": item}) == str(price)


async def test_only_the_teacher_is_shown_the_worked_calls(tasks: list[Task]) -> None:
    task = of(tasks, "both")
    shown = await Calculator(instructions="Use the tools.").reset(task, 0)
    assert [message.role for message in shown.messages] == ["system", "user"]
    assert shown.messages[0].content == "Use the tools."
    roles = ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message.role for message in shown.privileged] == roles
    assert shown.privileged[-1].content == str(task.data["answer"])
    assert [message.role for message in (await Calculator().reset(task, 0)).messages] == ["user"]


async def test_slow_tools_have_the_mean_and_the_tail(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def noted(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", noted)
    environment = Calculator(tool_latency_s={"mean": 0.3, "sigma": 1.0})
    for seed in range(4000):
        await environment.reset(tasks[0], seed)
        await environment.tools["calc"]({"expression": "1+1"})
    assert statistics.mean(waits) == pytest.approx(0.3, rel=0.1)
    assert statistics.quantiles(waits, n=100)[98] > 5 * statistics.median(waits)
    again = list(waits[:3])
    waits.clear()
    for seed in range(3):
        await environment.reset(tasks[0], seed)
        await environment.tools["calc"]({"expression": "1+1"})
    assert waits == again


async def test_tools_are_slow_only_where_asked(tasks: list[Task]) -> None:
    environment = Calculator(tool_latency_s={"mean": 5.0, "sigma": 0.0})
    await environment.reset(tasks[0], 0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(environment.tools["calc"]({"expression": "1+1"}), 0.05)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"train_task": 5}, "train_task"),
        ({"train_tasks": 0}, "train_tasks"),
        ({"tool_latency_s": {"mean": 0}}, "tool_latency_s.mean"),
        ({"expert_errors": {"kind": "random"}}, "expert_errors.kind"),
        ({"expert_errors": {"rate": 1.5}}, "expert_errors.rate"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Calculator(**options)
    with pytest.raises(ValueError, match=field):
        Calculator.tasks("train", **options)
