"""The families of problems, by name in `FAMILIES`."""

from asyncopd_envs.python_code.families import machines, numbers, tables, text
from asyncopd_envs.python_code.family import FAMILIES

__all__ = ["FAMILIES", "machines", "numbers", "tables", "text"]
