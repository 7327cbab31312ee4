"""Reading a configuration: YAML, then dotted overrides, then validation with one line an error."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from asyncopd.errors import UserError

Config = TypeVar("Config", bound=BaseModel)


def load(path: Path, overrides: Sequence[str], kind: type[Config]) -> Config:
    """Return the `kind` described by the YAML file at `path` with `a.b=value` overrides applied in order.

    Values of overrides are read as YAML. Raises `UserError` naming every field that is wrong.
    """
    return validate(_apply(_read(path), overrides), kind, str(path))


def validate(data: dict[str, Any], kind: type[Config], where: str = "configuration") -> Config:
    """Return `data` as a `kind`. Raises `UserError` naming every field that is wrong."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = [_describe(dict(problem), kind) for problem in error.errors()]
        raise UserError(where, "; ".join(problems), "correct the file or the --set option") from None


def dump(config: BaseModel) -> str:
    """Return the YAML that `load` reads back to an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(str(path), "there is no such file", "give the path of a YAML configuration") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "give a readable YAML configuration") from None
    except yaml.YAMLError as error:
        raise UserError(str(path), f"is not YAML ({' '.join(str(error).split())})", "correct the syntax") from None
    if not isinstance(data, dict):
        raise UserError(str(path), f"holds a {type(data).__name__}", "a configuration is a mapping of sections")
    return data


def _apply(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not all(dotted.split(".")):
            raise UserError(f"--set {override}", "is not of the form section.field=value", "for example run.seed=1")
        *parents, last = dotted.split(".")
        section = data
        for parent in parents:
            child = section.get(parent)
            section[parent] = section = child if isinstance(child, dict) else {}
        try:
            section[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            section[last] = text
    return data


def _describe(problem: dict[str, Any], kind: type[BaseModel]) -> str:
    location = [str(part) for part in problem["loc"]]
    field = ".".join(location)
    if problem["type"] == "extra_forbidden":
        siblings = _fields_at(kind, location[:-1])
        near = difflib.get_close_matches(location[-1], siblings, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(siblings)}"
        return f"unknown key {field!r}, {hint}"
    if problem["type"] == "missing":
        return f"{field!r} is required"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field!r}: {message} (got {problem['input']!r})" if field else message


def _fields_at(kind: type[BaseModel], location: Sequence[str]) -> list[str]:
    """Return the field names of the section at `location` below `kind`."""
    for name in location:
        annotation = kind.model_fields[name].annotation
        candidates = [annotation, *typing.get_args(annotation)]
        kind = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(kind.model_fields)
