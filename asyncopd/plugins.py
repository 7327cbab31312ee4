"""Finding user code by name: an entry point, or `module:Class`."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points
from typing import Any

from asyncopd.errors import UserError


class UnknownPlugin(LookupError):
    """No such entry point, module or class; the message names the nearest."""


def find_for(field: str, group: str, name: str) -> Any:
    """Return what `name`, the value of configuration field `field`, names in `group`. Raises `UserError`."""
    try:
        return find(group, name)
    except UnknownPlugin as error:
        raise UserError(field, str(error), "name one that is installed, or module:Class") from None
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{field} {name}", f"importing it failed ({problem})", "correct the module") from error


def find(group: str, name: str) -> Any:
    """Return the object that `name` names in entry-point `group`, for instance `asyncopd.envs`.

    `module:Class` is imported directly. Raises `UnknownPlugin`.
    """
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise UnknownPlugin(f"{name!r}: there is no module {error.name!r}") from error
        if attribute not in vars(module):
            raise UnknownPlugin(f"{name!r}: module {module_name!r} has no {attribute!r}")
        return vars(module)[attribute]
    known = {point.name: point for point in entry_points(group=group)}
    if name in known:
        return known[name].load()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
    raise UnknownPlugin(f"{name!r} is neither module:Class nor an entry point of {group!r}; {hint}")
