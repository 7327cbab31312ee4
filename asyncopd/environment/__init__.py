"""What an environment's author writes with: a class, tools and rewards that are decorated methods."""

from asyncopd.environment.base import Environment, NoOptions
from asyncopd.environment.rewards import Unjudged, reward
from asyncopd.environment.splits import in_split
from asyncopd.environment.tools import ToolError, tool

__all__ = ["Environment", "NoOptions", "ToolError", "Unjudged", "in_split", "reward", "tool"]
