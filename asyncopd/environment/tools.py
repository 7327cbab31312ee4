"""Tools as methods: signature and docstring become what the agent is told, arguments are checked before the call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, get_type_hints

import docstring_parser
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from asyncopd.records import ToolSpec

Function = TypeVar("Function", bound=Callable[..., Any])
Run = Callable[..., Awaitable[Any]]

_MARK = "__asyncopd_tool__"


class ToolError(Exception):
    """Tells the agent, in the words of its message, what was wrong with a call."""


def tool(function: Function | None = None, *, name: str | None = None) -> Any:
    """Make a method a tool that the agent may call, as `@tool` or `@tool(name="search")`.

    Its parameters need types that pydantic knows; their meaning comes from an `Args:` section of the docstring or
    from `Annotated[str, Field(description=…)]`. The agent is shown the docstring without that section. What the
    method returns is shown as text, or as JSON if it is no string; `ToolError` tells the agent what was wrong.
    A plain method runs in a thread of its episode, an `async` one on the event loop.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, _MARK, name or marked.__name__)
        return marked

    return mark if function is None else mark(function)


class BoundTool:
    """Implements `seams.Tool` for a method of one environment instance; `run` calls it where it may block."""

    def __init__(self, spec: ToolSpec, arguments: type[BaseModel], method: Callable[..., Any], run: Run) -> None:
        self.spec = spec
        self._arguments = arguments
        self._method = method
        self._run = run

    async def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Check the arguments, call the method and return its result as text. Raises `ToolError`."""
        try:
            checked = self._arguments.model_validate(dict(arguments))
        except pydantic.ValidationError as error:
            raise ToolError(_complaint(error)) from None
        named = {str(field.alias): getattr(checked, name) for name, field in self._arguments.model_fields.items()}
        return as_text(await self._run(self._method, **named))


def bound_tools(environment: object, run: Run) -> dict[str, BoundTool]:
    """Return the tools of an environment's class, base classes' first, by name.

    Raises `TypeError` for two of one name, and for a parameter without a type.
    """
    found: dict[str, BoundTool] = {}
    for attribute in _attributes(type(environment)):
        method = inspect.getattr_static(type(environment), attribute)
        name = vars(method).get(_MARK) if inspect.isfunction(method) else None
        if name is None:
            continue
        if name in found:
            raise TypeError(f"{type(environment).__name__} has two tools named {name!r}; give one another name")
        spec, arguments = described(method, name)
        found[name] = BoundTool(spec, arguments, getattr(environment, attribute), run)
    return found


def described(method: Callable[..., Any], name: str) -> tuple[ToolSpec, type[BaseModel]]:
    """Return what an agent is told of a method, and the model that checks its arguments."""
    text = docstring_parser.parse(inspect.getdoc(method) or "")
    meanings = {parameter.arg_name: parameter.description for parameter in text.params}
    types = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(list(inspect.signature(method).parameters.values())[1:]):
        if parameter.name not in types or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{method.__qualname__}: parameter {parameter.name!r} needs a type, and a name of its own")
        default = ... if parameter.default is parameter.empty else parameter.default
        told: dict[str, Any] = {"description": meanings[parameter.name]} if meanings.get(parameter.name) else {}
        # By alias, as a parameter may be called what pydantic's classes call something of their own.
        fields[f"parameter_{number}"] = (types[parameter.name], Field(default, alias=parameter.name, **told))
    model = pydantic.create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    schema = _untitled(model.model_json_schema())
    schema.setdefault("properties", {})
    description = "\n\n".join(part for part in (text.short_description, text.long_description) if part)
    return ToolSpec(name=name, description=description, parameters=schema), model


def as_text(result: Any) -> str:
    """Return what a tool returned as the agent is shown it."""
    if isinstance(result, str):
        return result
    if isinstance(result, bytes):
        return result.decode("utf-8", "replace")
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    return "" if result is None else json.dumps(result, ensure_ascii=False, default=str)


def _attributes(kind: type) -> list[str]:
    return list(dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base)))


def _untitled(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds, which only repeat names."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            kept[key] = {name: _untitled(part) for name, part in value.items()}  # a parameter may be called "title"
        elif key != "title":
            kept[key] = _untitled(value)
    return kept


def _complaint(error: pydantic.ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors())
