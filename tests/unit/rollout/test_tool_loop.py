"""The default agent lives episodes that the learner can train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import Message, Observation, Outcome, Step, Task, ToolResult, Trajectory, Version, decode, encode
from asyncopd.rollout.pool import RolloutPool
from asyncopd.text.chat import Chat

CALL = '<tool_call>{"name": "price", "arguments": {"item": "cup"}}</tool_call>'


def call(name: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'


class Stage:
    """A pool of one environment, whose engine says `lines` one after another."""

    def __init__(
        self,
        chat: Chat,
        environment: Any,
        engine_class: type,
        section: RolloutSection,
        lines: Sequence[Any],
        max_context: int = 4096,
    ) -> None:
        said = iter(lines)
        self.chat = chat
        self.environment = environment
        self.engine = engine_class(chat, lambda _: next(said), max_context)
        self._pool = RolloutPool(self.engine, lambda: environment, chat, section, seed=0)

    async def live(self, task: Task) -> Trajectory:
        trajectory = await self._pool.run(1, task, 0, Version(0, 0))
        assert decode(encode(trajectory), Trajectory).turns == trajectory.turns
        return trajectory


@pytest.fixture
def stage(shop: type, scripted_engine: type, section: RolloutSection) -> Callable[..., Stage]:
    def build(chat: Chat, lines: Sequence[Any], environment: Any = None, **options: Any) -> Stage:
        max_context = options.pop("max_context", 4096)
        chosen = section.model_copy(update=options)
        return Stage(chat, environment or shop(), scripted_engine, chosen, lines, max_context)

    return build


def sampled(trajectory: Trajectory) -> list[tuple[int, float]]:
    """Every token trained, with the log-prob that tells it from all others."""
    return [
        (int(segment.ids_T[row]), float(segment.logp_T[row]))
        for segment in trajectory.segments
        for row in segment.trained_rows
    ]


def everything(engine: Any) -> list[tuple[int, float]]:
    tokens = [token for ids in engine.said for token in ids]
    return [(token, -float(index + 1)) for index, token in enumerate(tokens)]


async def test_ids_are_the_prompt_then_sampled_and_observed_in_turn(stage, chat: Chat, cup: Task) -> None:
    scene = stage(chat, [CALL, "the price of a cup 4"])
    trajectory = await scene.live(cup)
    (segment,) = trajectory.segments
    first, second = scene.engine.requests
    one, two = scene.engine.said
    assert first.prompt_ids == chat.prompt_ids(trajectory.prompt)
    assert second.prompt_ids[: len(first.prompt_ids + one)] == first.prompt_ids + one
    assert segment.ids_T.tolist() == second.prompt_ids + two
    assert "4" in chat.decode(second.prompt_ids[len(first.prompt_ids + one) :])
    assert sampled(trajectory) == everything(scene.engine)
    assert (trajectory.outcome, trajectory.drift) == (Outcome.SUCCESS, 0)


async def test_turns_record_messages_calls_rewards_and_stop_reasons(stage, byte_chat: Chat, cup: Task) -> None:
    trajectory = await stage(byte_chat, [CALL, "it is 4"]).live(cup)
    first, second = trajectory.turns
    assert [m.role for m in first.messages] == ["assistant", "tool"]
    assert first.messages[1].content == "4"
    assert [c.arguments for c in first.tool_calls] == [{"item": "cup"}]
    assert (first.rewards, first.stop_reason) == ({"used": 0.25}, "stop")
    assert [m.content for m in second.messages] == ["it is 4"]
    assert trajectory.privileged == [Message(role="system", content="look it up")]


async def test_reward_is_the_sum_over_turns_with_what_finish_adds_to_the_last(
    stage, byte_chat: Chat, cup: Task
) -> None:
    trajectory = await stage(byte_chat, [CALL, "it is 4"]).live(cup)
    assert [turn.rewards for turn in trajectory.turns] == [{"used": 0.25}, {"right": 1.5, "short": 0.125}]
    assert trajectory.reward == 0.25 + 1.5 + 0.125


async def test_malformed_call_is_answered_with_an_error_and_the_episode_goes_on(
    stage, byte_chat: Chat, cup: Task
) -> None:
    scene = stage(byte_chat, ["<tool_call>{oops}</tool_call>", "it is 4"])
    trajectory = await scene.live(cup)
    turn = trajectory.turns[0]
    assert [m.content for m in turn.messages] == ["<tool_call>{oops}</tool_call>", "error: invalid JSON"]
    assert [c.error for c in turn.tool_calls] == ["invalid JSON"]
    assert [result.failed for result in scene.environment.seen[0]] == [True]
    assert (trajectory.outcome, trajectory.drift) == (Outcome.SUCCESS, 0)


async def test_failing_tools_are_observations_not_failures(stage, byte_chat: Chat, cup: Task) -> None:
    lines = [call("raise"), call("hang"), call("steal"), "it is 4"]
    trajectory = await stage(byte_chat, lines).live(cup)
    answers = [turn.messages[1].content.partition(":")[0] for turn in trajectory.turns[:3]]
    assert answers == ["error"] * 3
    assert trajectory.outcome == Outcome.SUCCESS


async def test_output_that_forges_a_turn_stays_inside_the_observation(stage, byte_chat: Chat, cup: Task) -> None:
    scene = stage(byte_chat, [call("forge"), "it is 4"])
    trajectory = await scene.live(cup)
    (segment,) = trajectory.segments
    ends = int(np.count_nonzero(segment.ids_T == byte_chat.stop_ids[0]))
    assert ends == 5  # tools, task, call, observation, answer
    assert sampled(trajectory) == everything(scene.engine)


async def test_action_without_calls_ends_the_episode(stage, byte_chat: Chat, cup: Task) -> None:
    trajectory = await stage(byte_chat, ["it is 5"]).live(cup)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.FAILURE, 1)


async def test_messages_of_the_environment_keep_the_episode_going(stage, byte_chat: Chat, cup: Task) -> None:
    trajectory = await stage(byte_chat, ["shall I look?", "it is 4"]).live(cup)
    assert [m.content for m in trajectory.turns[0].messages] == ["shall I look?", "yes"]
    assert trajectory.outcome == Outcome.SUCCESS


async def test_thinking_that_the_template_drops_begins_a_new_segment(stage, drops_thinking: Chat, cup: Task) -> None:
    scene = stage(drops_thinking, ["<think>hm</think>shall I look?", CALL, "it is 4"])
    trajectory = await scene.live(cup)
    assert (len(trajectory.segments), trajectory.drift) == (2, 1)
    assert sampled(trajectory) == everything(scene.engine)
    first, second = (drops_thinking.decode(segment.ids_T.tolist()) for segment in trajectory.segments)
    assert "hm" in first and "hm" not in second and "shall I look?" in second


async def test_silent_turn_is_recorded(stage, byte_chat: Chat, cup: Task) -> None:
    trajectory = await stage(byte_chat, [""]).live(cup)
    assert [m.content for m in trajectory.turns[0].messages] == [""]
    assert len(trajectory.segments[0].trained_rows) == 1


async def test_turn_cut_by_its_length_is_truncated_and_its_calls_are_not_run(stage, byte_chat: Chat, cup: Task) -> None:
    scene = stage(byte_chat, [CALL + "it is" * 50], max_turn_tokens=100)
    trajectory = await scene.live(cup)
    assert (trajectory.outcome, trajectory.turns[0].stop_reason) == (Outcome.TRUNCATED, "length")
    assert scene.environment.log == ["reset", "finish"]
    assert len(trajectory.segments[0].trained_rows) == 100


async def test_last_turn_allowed_truncates(stage, byte_chat: Chat, cup: Task) -> None:
    trajectory = await stage(byte_chat, [CALL] * 9, max_turns=3).live(cup)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.TRUNCATED, 3)
    assert trajectory.reward == 0.75


async def test_context_is_never_exceeded(stage, byte_chat: Chat, cup: Task) -> None:
    for max_context in range(300, 420, 7):
        scene = stage(byte_chat, [CALL] * 9, max_context=max_context)
        trajectory = await scene.live(cup)
        assert trajectory.outcome == Outcome.TRUNCATED
        assert all(len(segment) <= max_context for segment in trajectory.segments)
        assert all(r.sampling.max_tokens >= 1 for r in scene.engine.requests)
        assert sampled(trajectory) == everything(scene.engine)


async def test_prompt_that_fills_the_context_is_truncated_before_the_first_turn(
    stage, byte_chat: Chat, cup: Task
) -> None:
    length = len(byte_chat.prompt_ids([Message(role="user", content="the price of a cup")]))
    trajectory = await stage(byte_chat, [], max_context=length).live(cup)
    assert (trajectory.outcome, trajectory.turns, trajectory.segments) == (Outcome.TRUNCATED, [], [])
    with_room = await stage(byte_chat, [""], max_context=length + 1).live(cup)
    assert len(with_room.turns) == 1


class Verdicts:
    """Ends after one step as it is told to."""

    tools: dict[str, Any] = {}

    def __init__(self, step: Step, last: Step) -> None:
        self._step = step
        self._last = last

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(messages=[Message(role="user", content="a cup")])

    async def step(self, action: Message, results: Sequence[ToolResult] = ()) -> Step:
        return self._step

    async def finish(self, trajectory: Trajectory) -> Step:
        return self._last

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("step", "last", "outcome"),
    [
        (Step(done=True, outcome="malformed"), Step(), Outcome.MALFORMED),
        (Step(done=True), Step(outcome="success"), Outcome.SUCCESS),
        (Step(done=True, outcome="success"), Step(outcome="failure"), Outcome.FAILURE),
        (Step(done=True), Step(), Outcome.FAILURE),
    ],
)
async def test_outcome_is_the_environments_last_word(
    stage, byte_chat: Chat, cup: Task, step: Step, last: Step, outcome: Outcome
) -> None:
    assert (await stage(byte_chat, ["4"], Verdicts(step, last)).live(cup)).outcome == outcome
