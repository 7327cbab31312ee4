"""Runs programs that may do anything, behind walls and within limits."""

from asyncopd.sandbox.box import Result, Sandbox
from asyncopd.sandbox.launch import Strength
from asyncopd.sandbox.limits import Limits
from asyncopd.sandbox.process import SandboxError
from asyncopd.sandbox.strength import MEANINGS, STRENGTHS, Found, accept, admitted, find, in_force

__all__ = [
    "MEANINGS",
    "STRENGTHS",
    "Found",
    "Limits",
    "Result",
    "Sandbox",
    "SandboxError",
    "Strength",
    "accept",
    "admitted",
    "find",
    "in_force",
]
