"""What an environment can ask of an agent."""

from __future__ import annotations

from typing import Any

import msgspec


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One goal an environment can pose.

    `id` is stable across runs and machines, and unique in its environment; `domain` groups tasks for
    reports and budgets; `data` is the environment's own, of JSON types only.
    """

    id: str
    domain: str
    data: dict[str, Any]
