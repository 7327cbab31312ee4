"""Chat messages and tool calls, in the shape that chat templates read."""

from __future__ import annotations

from typing import Any

import msgspec


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call the agent made; `error` says why the text could not be read as one."""

    id: str
    name: str
    arguments: dict[str, Any]
    error: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chat message: role `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the dictionary that Hugging Face chat templates expect.

        Calls that could not be read are left out: their text is part of the content.
        """
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        calls = [call for call in self.tool_calls if call.error is None]
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told of a tool; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]

    def for_template(self) -> dict[str, Any]:
        """Return the OpenAI function form that chat templates and servers expect."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}
