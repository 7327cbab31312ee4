"""The default agent: it speaks, its tools answer, it speaks again."""

from __future__ import annotations

import time
from collections import Counter

import msgspec

from asyncopd.config.rollout import RolloutSection
from asyncopd.records import Generation, Message, Observation, Outcome, Step, Timings, ToolResult, Trajectory, Turn
from asyncopd.rollout.recorder import Recorder
from asyncopd.seams import Episode
from asyncopd.text.chat import Chat
from asyncopd.text.parsers import PARSERS

AGENT = "agent"


class ToolLoop:
    """Generate, run the calls, show the results and then the environment's own messages; and again.

    The episode ends when the environment says so; at an action without calls to which the environment
    adds no message; when a turn is cut by its length; after `max_turns` turns; and when the next prompt
    would leave no room in `max_context` tokens. The last three, if the environment has not ended it, are
    `truncated`. An environment that ends without an outcome has not seen success: `failure`.
    """

    def __init__(self, chat: Chat, section: RolloutSection, max_context: int) -> None:
        self._chat = chat
        self._parse = PARSERS[section.parser]
        self._max_turns = section.max_turns
        self._max_context = max_context

    async def run(self, episode: Episode) -> Trajectory:
        """Live the episode. Raises what the environment and `episode.generate` raise."""
        observation = await episode.environment.reset(episode.task, episode.seed)
        life = _Life(self._chat, observation)
        while life.outcome is None:
            if len(life.turns) == self._max_turns or len(life.recorder.ids) >= self._max_context:
                life.outcome = Outcome.TRUNCATED
            else:
                await self._turn(episode, life)
        trajectory = life.trajectory(episode)
        return _finished(trajectory, await episode.environment.finish(trajectory))

    async def _turn(self, episode: Episode, life: _Life) -> None:
        index = len(life.turns)
        began = time.monotonic()
        generation = await episode.generate(life.recorder.ids, index)
        generated = time.monotonic()
        life.recorder.generated(generation, index)
        content, calls = self._parse(self._chat.decode(generation.ids_R.tolist()), index)
        action = Message(role="assistant", content=content, tool_calls=calls)
        if generation.stop_reason == "length":
            life.add_turn(generation, action, [], Step(), Timings(generate=generated - began))
            life.outcome = Outcome.TRUNCATED
            return
        results = await episode.call_tools(calls) if calls else []
        answered = time.monotonic()
        step = await episode.environment.step(action, results)
        timings = Timings(generate=generated - began, tools=answered - generated)
        life.add_turn(generation, action, results, step, timings)
        if step.done or not (calls or step.messages):
            life.outcome = Outcome(step.outcome or Outcome.FAILURE)
        else:
            life.go_on()


class _Life:
    """What an episode has been so far."""

    def __init__(self, chat: Chat, observation: Observation) -> None:
        self.prompt = list(observation.messages)
        self.privileged = list(observation.privileged)
        self.turns: list[Turn] = []
        self.outcome: Outcome | None = None
        self.recorder = Recorder(chat.prompt_ids(self.prompt))
        self._chat = chat
        self._history = list(self.prompt)
        self._drift = 0

    def add_turn(
        self, generation: Generation, action: Message, results: list[ToolResult], step: Step, timings: Timings
    ) -> None:
        self.privileged += step.privileged
        self.turns.append(
            Turn(
                agent=AGENT,
                messages=[action, *(result.message() for result in results), *step.messages],
                tool_calls=action.tool_calls,
                rewards=step.rewards,
                timings=timings,
                stop_reason=generation.stop_reason,
            )
        )

    def go_on(self) -> None:
        """Show the agent what followed its last action."""
        action, *observed = self.turns[-1].messages
        self._history.append(action)
        ids = self.recorder.ids
        extension = self._chat.extend(ids, self._history, observed)
        self._history += observed
        if extension.broken:
            self._drift += 1
            self.recorder.restart(extension.ids)
        else:
            self.recorder.observed(extension.ids[len(ids) :], len(self.turns) - 1)

    def trajectory(self, episode: Episode) -> Trajectory:
        assert self.outcome is not None
        return Trajectory(
            task=episode.task,
            attempt=episode.attempt,
            prompt=self.prompt,
            segments=self.recorder.segments(),
            turns=self.turns,
            outcome=self.outcome,
            reward=sum(sum(turn.rewards.values()) for turn in self.turns),
            privileged=self.privileged,
            drift=self._drift,
        )


def _finished(trajectory: Trajectory, last: Step) -> Trajectory:
    """Return the trajectory with what `finish` said: rewards join the last turn's, an outcome replaces."""
    turns = trajectory.turns
    if turns and last.rewards:
        rewards = Counter(turns[-1].rewards)
        rewards.update(last.rewards)
        turns = [*turns[:-1], msgspec.structs.replace(turns[-1], rewards=dict(rewards))]
    return msgspec.structs.replace(
        trajectory,
        turns=turns,
        reward=trajectory.reward + sum(last.rewards.values()),
        outcome=Outcome(last.outcome or trajectory.outcome),
        privileged=[*trajectory.privileged, *last.privileged],
    )
