"""What passes between an agent and its environment."""

from __future__ import annotations

import msgspec

from asyncopd.records.messages import Message


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is first shown. `privileged` is for teachers only, never for the student."""

    messages: list[Message]
    privileged: list[Message] = []


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one call; `failed` marks a tool that raised or ran out of time."""

    call_id: str
    name: str
    content: str
    failed: bool = False

    def message(self) -> Message:
        """Return the message that shows the result to the agent."""
        return Message(role="tool", content=self.content, tool_call_id=self.call_id, name=self.name)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """An environment's answer to an action. `outcome` is an `Outcome` value once `done`."""

    messages: list[Message] = []
    rewards: dict[str, float] = {}
    privileged: list[Message] = []
    done: bool = False
    outcome: str | None = None


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """What an expert says next; `teaches` is False for an error made on purpose, to show the recovery."""

    message: Message
    teaches: bool = True
