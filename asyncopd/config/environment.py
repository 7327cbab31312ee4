"""The environment that poses the tasks."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from asyncopd.config.section import Section


class EnvironmentSection(Section):
    """`environment`: tasks, tools and rewards."""

    use: str = Field(min_length=1)
    """An entry point of the group `asyncopd.envs`, or `module:Class`."""

    options: dict[str, Any] = {}
    """Given to the environment's constructor and to its `tasks` as they are."""
