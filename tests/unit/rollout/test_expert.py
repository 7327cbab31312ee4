"""Demonstrations are recorded as a model's own episodes are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import Demonstration, LossMask, Message, Outcome, Task, ToolCall
from asyncopd.rollout.expert import demonstrate
from asyncopd.text.chat import Chat


@pytest.fixture
def guided(shop: type) -> Any:
    class Guided(shop):
        """Asks for the wrong item first, then for the right one, then answers."""

        def expert(self, task: Task, history: Sequence[Message], seed: int) -> Demonstration:
            self.seeds.append(seed)
            assert history[-1].role in ("user", "tool")
            results = [message.content for message in history if message.role == "tool"]
            if len(results) == 2:
                return Demonstration(message=Message(role="assistant", content=f"the price {results[-1]}"))
            item = "lamp" if not results else task.data["item"]
            call = ToolCall(id="x", name="price", arguments={"item": item})
            return Demonstration(
                message=Message(role="assistant", content="", tool_calls=[call]), teaches=bool(results)
            )

    return Guided()


async def test_demonstration_is_what_a_model_would_have_been_shown_and_said(
    chat: Chat, guided: Any, cup: Task, section: RolloutSection
) -> None:
    trajectory = await demonstrate(guided, chat, cup, attempt=3, seed=7, section=section, max_context=2048)
    (segment,) = trajectory.segments
    history = list(trajectory.prompt)
    ids = chat.prompt_ids(history)
    for turn in trajectory.turns:
        ids = ids + chat.turn_ids(history, turn.messages[0])
        history += turn.messages
        if turn is not trajectory.turns[-1]:
            ids = chat.prompt_ids(history)
    assert segment.ids_T.tolist() == ids
    assert (trajectory.outcome, trajectory.attempt, trajectory.drift) == (Outcome.SUCCESS, 3, 0)
    assert set(guided.seeds) == {7}
    assert guided.log == ["reset", "step", "step", "step", "finish"]


async def test_error_made_on_purpose_is_seen_but_not_taught(
    byte_chat: Chat, guided: Any, cup: Task, section: RolloutSection
) -> None:
    (segment,) = (
        await demonstrate(guided, byte_chat, cup, attempt=0, seed=0, section=section, max_context=2048)
    ).segments
    generated = segment.generated_rows
    wrong = segment.turn_T[generated] == 0
    expected = np.where(wrong, LossMask.DEMONSTRATED_ERROR, LossMask.TRAIN)
    assert segment.loss_mask_T[generated].tolist() == expected.tolist()
    assert set(segment.turn_T[segment.trained_rows].tolist()) == {1, 2}
    assert not segment.logp_T.any() and set(segment.version_T[generated].tolist()) == {0}


async def test_error_is_taught_when_asked_for(byte_chat: Chat, guided: Any, cup: Task, section: RolloutSection) -> None:
    trajectory = await demonstrate(
        guided, byte_chat, cup, attempt=0, seed=0, section=section, max_context=2048, train_on_errors=True
    )
    (segment,) = trajectory.segments
    assert segment.trained_rows.tolist() == segment.generated_rows.tolist()


async def test_demonstration_ends_where_the_context_is_full(
    byte_chat: Chat, guided: Any, cup: Task, section: RolloutSection
) -> None:
    opening = len(byte_chat.prompt_ids([Message(role="user", content="the price of a cup")]))
    trajectory = await demonstrate(guided, byte_chat, cup, attempt=0, seed=0, section=section, max_context=opening + 5)
    assert trajectory.outcome == Outcome.TRUNCATED
    assert len(trajectory.segments[0]) == opening + 5


async def test_hanging_environment_ends_the_demonstration(
    byte_chat: Chat, shop: type, cup: Task, section: RolloutSection
) -> None:
    brief = section.model_copy(update={"episode_timeout_s": 0.05})
    environment = shop({"reset": lambda: asyncio.sleep(3600)})
    with pytest.raises(TimeoutError):
        await demonstrate(environment, byte_chat, cup, attempt=0, seed=0, section=brief, max_context=2048)
