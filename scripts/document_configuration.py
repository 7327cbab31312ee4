"""Write docs/configuration.md from the docstrings, defaults and bounds of the configuration's fields."""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import annotated_types
from pydantic.fields import FieldInfo

from asyncopd.config.root import SftConfig, TrainConfig
from asyncopd.config.section import Section

_PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
_OPENING = """# Configuration

Every field can be set in the YAML or by `--set section.field=value`. An unknown key is an error.
This page is written by `python scripts/document_configuration.py`.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_OPENING]
    for command, kind in (("asyncopd train", TrainConfig), ("asyncopd sft", SftConfig)):
        parts.append(f"## `{command}`\n\n" + "\n".join(_tables(kind, skip=TrainConfig if kind is SftConfig else None)))
    return "\n".join(parts)


def _tables(kind: type[Section], skip: type[Section] | None) -> Iterator[str]:
    shared = set() if skip is None else {_section(field) for field in skip.model_fields.values()}
    own = {name: field for name, field in kind.model_fields.items() if _section(field) is None}
    if own:
        yield _table("top level", own)
    for name, field in kind.model_fields.items():
        section = _section(field)
        if section is None:
            continue
        if section in shared:
            yield f"`{name}` as above.\n"
            continue
        yield from _section_tables(name, section)


def _section_tables(name: str, section: type[Section]) -> Iterator[str]:
    plain = {key: field for key, field in section.model_fields.items() if _section(field) is None}
    yield _table(f"`{name}`", plain)
    for key, field in section.model_fields.items():
        inner = _section(field)
        if inner is not None:
            yield from _section_tables(f"{name}.{key}", inner)


def _section(field: FieldInfo) -> type[Section] | None:
    for candidate in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _table(title: str, fields: dict[str, FieldInfo]) -> str:
    rows = [f"### {title}\n", "| field | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {_default(field)} | {_allowed(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"


def _allowed(field: FieldInfo) -> str:
    if typing.get_origin(field.annotation) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(field.annotation))
    bounds = []
    for rule in field.metadata:
        match rule:
            case annotated_types.Gt(gt=bound):
                bounds.append(f"> {bound}")
            case annotated_types.Ge(ge=bound):
                bounds.append(f"≥ {bound}")
            case annotated_types.Lt(lt=bound):
                bounds.append(f"< {bound}")
            case annotated_types.Le(le=bound):
                bounds.append(f"≤ {bound}")
    return ", ".join(bounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is as it should be")
    arguments = parser.parse_args()
    if not arguments.check:
        _PAGE.write_text(page(), encoding="utf-8")
    elif _PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{_PAGE} is out of date; run: python scripts/document_configuration.py")


if __name__ == "__main__":
    main()
