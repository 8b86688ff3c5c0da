"""Pairs of JSON Schemas with Confluent's verdicts: whether the new one may follow the old one, BACKWARD and
FORWARD.

The rules are those of its documentation ("Schema evolution and compatibility", JSON Schema): the new schema
must accept what the old one accepted; objects are open unless they say otherwise, so adding a property
narrows them.
"""

import json
from typing import Any

from tests.unit.registry.avro_cases import Case

TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}


def thing(*names: str, **more: Any) -> dict[str, Any]:
    """An object with text properties of these names."""
    return {"type": "object", "properties": dict.fromkeys(names, TEXT), **more}


def closed(*names: str, **more: Any) -> dict[str, Any]:
    return thing(*names, additionalProperties=False, **more)


def partly(kind: dict[str, Any], *names: str) -> dict[str, Any]:
    return thing(*names, additionalProperties=kind)


def listed(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


def one_of(*parts: Any) -> dict[str, Any]:
    return {"oneOf": list(parts)}


def any_of(*parts: Any) -> dict[str, Any]:
    return {"anyOf": list(parts)}


def all_of(*parts: Any) -> dict[str, Any]:
    return {"allOf": list(parts)}


def defined(root: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    return {**root, "definitions": definitions}


TREE = defined(
    {"$ref": "#/definitions/t"}, t=closed("v") | {"properties": {"v": TEXT, "n": {"$ref": "#/definitions/t"}}}
)
TREE_MORE = defined(
    {"$ref": "#/definitions/t"},
    t=closed() | {"properties": {"v": TEXT, "w": TEXT, "n": {"$ref": "#/definitions/t"}}},
)
TREE_OTHER = defined(
    {"$ref": "#/definitions/t"}, t=closed() | {"properties": {"v": NUMBER, "n": {"$ref": "#/definitions/t"}}}
)
PATTERNED = closed("a", patternProperties={"^x_": TEXT})

_ROWS: tuple[tuple[str, Any, Any, bool, bool], ...] = (
    ("the same", thing("a"), thing("a"), True, True),
    ("titles and descriptions", thing("a", title="x"), thing("a", description="y"), True, True),
    ("another default", {**TEXT, "default": "x"}, {**TEXT, "default": "y"}, True, True),
    ("everything is accepted", thing("a"), {}, True, False),
    ("everything is accepted, said with true", TEXT, True, True, False),
    ("nothing is accepted", TEXT, False, False, True),
    ("a string becomes a number", TEXT, NUMBER, False, False),
    ("an integer becomes a number", WHOLE, NUMBER, True, False),
    ("a number becomes an integer", NUMBER, WHOLE, False, True),
    ("a second type", TEXT, {"type": ["string", "null"]}, True, False),
    ("a third type", {"type": ["string", "null"]}, {"type": ["string", "null", "number"]}, True, False),
    ("types change places", {"type": ["string", "null"]}, {"type": ["null", "string"]}, True, True),
    ("maxLength grows", {**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 9}, True, False),
    ("maxLength is added", TEXT, {**TEXT, "maxLength": 9}, False, True),
    ("minLength grows", {**TEXT, "minLength": 1}, {**TEXT, "minLength": 2}, False, True),
    ("a pattern is added", TEXT, {**TEXT, "pattern": "^a"}, False, True),
    ("a pattern changes", {**TEXT, "pattern": "^a"}, {**TEXT, "pattern": "^b"}, False, False),
    ("a format is added", TEXT, {**TEXT, "format": "date"}, True, True),
    ("maximum grows", {**NUMBER, "maximum": 5}, {**NUMBER, "maximum": 9}, True, False),
    ("maximum is removed", {**NUMBER, "maximum": 5}, NUMBER, True, False),
    ("minimum grows", {**NUMBER, "minimum": 5}, {**NUMBER, "minimum": 9}, False, True),
    ("exclusiveMinimum is added", NUMBER, {**NUMBER, "exclusiveMinimum": 0}, False, True),
    (
        "exclusiveMaximum shrinks",
        {**NUMBER, "exclusiveMaximum": 9},
        {**NUMBER, "exclusiveMaximum": 5},
        False,
        True,
    ),
    ("multipleOf is divided", {**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 5}, True, False),
    ("multipleOf is another", {**NUMBER, "multipleOf": 4}, {**NUMBER, "multipleOf": 6}, False, False),
    (
        "multipleOf written differently",
        {**NUMBER, "multipleOf": 0.5},
        {**NUMBER, "multipleOf": 0.50},
        True,
        True,
    ),
    ("a value is added to an enum", {"enum": ["a"]}, {"enum": ["a", "b"]}, True, False),
    ("an enum is replaced", {"enum": ["a"]}, {"enum": ["b"]}, False, False),
    ("an enum changes places", {"enum": ["a", "b"]}, {"enum": ["b", "a"]}, True, True),
    ("a const changes", {"const": 1}, {"const": 2}, False, False),
    ("a property is added to an open object", thing("a"), thing("a", "b"), False, True),
    ("a property is removed from an open object", thing("a", "b"), thing("a"), True, False),
    ("a property is added to a closed object", closed("a"), closed("a", "b"), True, False),
    ("a property is removed from a closed object", closed("a", "b"), closed("a"), False, True),
    (
        "a required property is added to a closed object",
        closed("a"),
        closed("a", "b", required=["b"]),
        False,
        False,
    ),
    (
        "a required property with a default is added to a closed object",
        closed("a"),
        closed("a", required=["b"]) | {"properties": {"a": TEXT, "b": {**TEXT, "default": ""}}},
        True,
        False,
    ),
    (
        "a property without a schema is added",
        thing("a"),
        thing("a") | {"properties": {"a": TEXT, "b": {}}},
        True,
        True,
    ),
    (
        "a property's type widens",
        thing() | {"properties": {"a": WHOLE}},
        thing() | {"properties": {"a": NUMBER}},
        True,
        False,
    ),
    ("a property becomes required", thing("a"), thing("a", required=["a"]), False, True),
    ("a property is no longer required", thing("a", required=["a"]), thing("a"), True, False),
    (
        "a property with a default becomes required",
        thing() | {"properties": {"a": {**TEXT, "default": ""}}},
        thing(required=["a"]) | {"properties": {"a": {**TEXT, "default": ""}}},
        True,
        True,
    ),
    ("an object closes", thing("a"), closed("a"), False, True),
    ("what may be added is narrowed", thing("a"), partly(TEXT, "a"), False, True),
    ("what may be added widens", partly(WHOLE, "a"), partly(NUMBER, "a"), True, False),
    ("a covered property is added", partly(TEXT, "a"), partly(TEXT, "a", "b"), True, True),
    (
        "a property is added that is not covered",
        partly(NUMBER, "a"),
        partly(NUMBER, "a", "b"),
        False,
        False,
    ),
    (
        "a property is added that a pattern covers",
        PATTERNED,
        closed("a", "x_b", patternProperties={"^x_": TEXT}),
        True,
        True,
    ),
    ("maxProperties grows", thing(maxProperties=1), thing(maxProperties=2), True, False),
    ("minProperties is added", thing(), thing(minProperties=1), False, True),
    ("a dependency is added", thing("a", "b"), thing("a", "b", dependencies={"a": ["b"]}), False, True),
    (
        "a dependency asks for more",
        thing("a", "b", "c", dependencies={"a": ["b"]}),
        thing("a", "b", "c", dependencies={"a": ["b", "c"]}),
        False,
        True,
    ),
    (
        "a dependent schema is removed",
        thing("a", dependencies={"a": {"minProperties": 2}}),
        thing("a"),
        True,
        False,
    ),
    ("items widen", listed(items=WHOLE), listed(items=NUMBER), True, False),
    ("items are others", listed(items=WHOLE), listed(items=TEXT), False, False),
    ("items are added", listed(), listed(items=TEXT), False, True),
    ("maxItems shrinks", listed(maxItems=5), listed(maxItems=3), False, True),
    ("uniqueItems is added", listed(), listed(uniqueItems=True), False, True),
    ("a position is added to an open tuple", listed(items=[TEXT]), listed(items=[TEXT, TEXT]), False, True),
    (
        "a position is added to a closed tuple",
        listed(items=[TEXT], additionalItems=False),
        listed(items=[TEXT, TEXT], additionalItems=False),
        True,
        False,
    ),
    ("a tuple closes", listed(items=[TEXT]), listed(items=[TEXT], additionalItems=False), False, True),
    ("a type becomes one of a choice", TEXT, one_of(TEXT, NUMBER), True, False),
    ("a choice grows", one_of(TEXT, NUMBER), one_of(TEXT, NUMBER, {"type": "null"}), True, False),
    ("a choice shrinks", any_of(TEXT, NUMBER), any_of(TEXT), False, True),
    ("a choice changes places", one_of(TEXT, NUMBER), one_of(NUMBER, TEXT), True, True),
    ("a part of a choice widens", one_of(TEXT, WHOLE), one_of(TEXT, NUMBER), True, False),
    ("a part of a choice is another", one_of(TEXT, WHOLE), one_of(TEXT, {"type": "boolean"}), False, False),
    ("oneOf becomes anyOf", one_of(TEXT, WHOLE), any_of(TEXT, WHOLE), True, False),
    ("another condition", all_of(thing("a")), all_of(thing("a"), thing(minProperties=1)), False, True),
    ("allOf becomes one of its parts", all_of(thing("a"), closed("b")), thing("a"), True, False),
    ("allOf becomes oneOf", all_of(TEXT, {"minLength": 1}), one_of(TEXT, {"minLength": 1}), False, False),
    ("not excludes less", {"not": NUMBER}, {"not": WHOLE}, True, False),
    ("not excludes more", {"not": WHOLE}, {"not": NUMBER}, False, True),
    (
        "a definition widens",
        defined(closed() | {"properties": {"a": {"$ref": "#/definitions/d"}}}, d=WHOLE),
        defined(closed() | {"properties": {"a": {"$ref": "#/definitions/d"}}}, d=NUMBER),
        True,
        False,
    ),
    (
        "a definition is renamed",
        defined({"$ref": "#/definitions/c"}, c=TEXT),
        defined({"$ref": "#/definitions/d"}, d=TEXT),
        True,
        True,
    ),
    ("a recursive schema grows", TREE, TREE_MORE, True, False),
    ("a recursive schema changes a type", TREE, TREE_OTHER, False, False),
    ("an unused definition is added", thing("a"), defined(thing("a"), d=NUMBER), True, True),
)

CASES = tuple(
    Case(name, json.dumps(old), json.dumps(new), back, forth) for name, old, new, back, forth in _ROWS
)
