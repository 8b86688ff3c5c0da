"""Changes of what strings, numbers and single values may be, as pairs of Confluent's name and the keyword."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from tidelog.registry.formats.json_model import Kind, Node

Change = tuple[str, str]


def limit_change(name: str, kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """A limit that was added, removed, increased or decreased."""
    before, after = _number(old.get(name)), _number(new.get(name))
    if before == after:
        return
    if before is None:
        yield f"{kind}_ADDED", name
    elif after is None:
        yield f"{kind}_REMOVED", name
    else:
        yield f"{kind}_{'INCREASED' if before < after else 'DECREASED'}", name


def string_changes(old: Node, new: Node) -> Iterator[Change]:
    yield from limit_change("maxLength", "MAX_LENGTH", old.keywords, new.keywords)
    yield from limit_change("minLength", "MIN_LENGTH", old.keywords, new.keywords)
    before, after = old.keywords.get("pattern"), new.keywords.get("pattern")
    if before != after:
        kind = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
        yield f"PATTERN_{kind}", "pattern"


def number_changes(old: Node, new: Node) -> Iterator[Change]:
    for name, kind in (
        ("maximum", "MAXIMUM"),
        ("minimum", "MINIMUM"),
        ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"),
        ("exclusiveMinimum", "EXCLUSIVE_MINIMUM"),
    ):
        yield from limit_change(name, kind, old.keywords, new.keywords)
    before, after = _number(old.keywords.get("multipleOf")), _number(new.keywords.get("multipleOf"))
    if before != after:
        yield f"MULTIPLE_OF_{_multiple_change(before, after)}", "multipleOf"
    if old.integer != new.integer:
        yield ("TYPE_EXTENDED" if old.integer else "TYPE_NARROWED"), ""


def _multiple_change(before: Decimal | None, after: Decimal | None) -> str:
    if before is None:
        return "ADDED"
    if after is None:
        return "REMOVED"
    if before and after % before == 0:
        return "EXPANDED"
    if after and before % after == 0:
        return "REDUCED"
    return "CHANGED"


def value_changes(old: Node, new: Node) -> Iterator[Change]:
    if old.kind is Kind.CONST:
        if _distinct(old.keywords["const"]) != _distinct(new.keywords["const"]):
            yield "ENUM_ARRAY_CHANGED", "const"
        return
    before, after = _values(old), _values(new)
    if before == after:
        return
    if before <= after:
        yield "ENUM_ARRAY_EXTENDED", "enum"
    elif after <= before:
        yield "ENUM_ARRAY_NARROWED", "enum"
    else:
        yield "ENUM_ARRAY_CHANGED", "enum"


def _values(node: Node) -> set[str]:
    rows = node.keywords["enum"]
    return {_distinct(row) for row in rows} if isinstance(rows, list) else {_distinct(rows)}


def _distinct(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _number(value: Any) -> Decimal | None:
    """A limit; draft 4 has booleans in places of numbers, which set none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Decimal(str(value))
