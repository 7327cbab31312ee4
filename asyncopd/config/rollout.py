"""How episodes are lived."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncopd.config.section import Section


class RolloutSection(Section):
    """`rollout`: sampling, limits and tools."""

    max_concurrent: int = Field(64, ge=1)
    """Episodes alive at once."""

    temperature: float = Field(1.0, ge=0.01)
    """Sampling temperature of the behaviour policy; vLLM takes any below 0.01 for 0.01."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Only the fewest tokens that hold this much probability may be sampled. Log μ is that of the distribution so
    cut; objectives with a ratio or draws refuse a cut."""

    top_k: int = Field(0, ge=0)
    """Only so many of the likeliest tokens may be sampled, before `top_p`; 0 is all."""

    max_turns: int = Field(8, ge=1)
    """Assistant turns of an episode."""

    max_turn_tokens: int = Field(256, ge=1)
    """Tokens of one assistant turn."""

    parser: Literal["hermes", "llama3_json", "pythonic", "json", "react"] = "hermes"
    """How tool calls are read from text: `hermes`, also Qwen's, `<tool_call>{"name": …, "arguments": …}</tool_call>`,
    `llama3_json` `{"name": …, "parameters": …}`, `pythonic` `[search(query="x")]`, `json` an object or a list of them,
    alone or fenced, `react` lines of `Action:` and `Action Input:`."""

    tool_timeout_s: float = Field(30, gt=0)
    """Seconds a tool call may take; after that the agent is told so."""

    sandbox: Literal["bubblewrap", "namespaces", "rlimits"] = "namespaces"
    """The weakest walls that programs of an agent's may run behind, where an environment runs any; the strongest that
    the machine can build are used. `rlimits` stops neither the network nor reading what this user may read."""

    generate_timeout_s: float = Field(120, gt=0)
    """Seconds one generation may take."""

    episode_timeout_s: float = Field(600, gt=0)
    """Seconds an episode may take; after that it is retried."""
