"""Pairs of Avro schemas with Confluent's verdicts: whether the new one may follow the old one, BACKWARD and
FORWARD.

The rules are those of schema resolution in Avro's specification, which Confluent's registry takes from
Avro's Java library. `{…}` is written out, `R(…)` is a record of these fields.
"""

import json
from typing import Any, NamedTuple


class Case(NamedTuple):
    """BACKWARD: the new schema reads old data. FORWARD: the old schema reads new data."""

    name: str
    old: str
    new: str
    backward: bool
    forward: bool


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def table(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


A, B = field("a", "int"), field("b", "int")
B_DEFAULT = field("b", "int", default=0)
NODE = record(field("next", ["null", "Node"], default=None), A, name="Node")
NODE_MORE = record(field("next", ["null", "Node"], default=None), A, B_DEFAULT, name="Node")
NODE_TEXT = record(field("next", ["null", "Node"], default=None), field("a", "string"), name="Node")
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

_ROWS: tuple[tuple[str, Any, Any, bool, bool], ...] = (
    ("the same", record(A), record(A), True, True),
    ("a field with a default is added", record(A), record(A, B_DEFAULT), True, True),
    ("a field without a default is added", record(A), record(A, B), False, True),
    ("a field with a default is removed", record(A, B_DEFAULT), record(A), True, True),
    ("a field without a default is removed", record(A, B), record(A), True, False),
    ("a default is added", record(A), record(field("a", "int", default=1)), True, True),
    ("a default is removed", record(field("a", "int", default=1)), record(A), True, True),
    ("a default of null is a default", record(A), record(A, field("b", "null", default=None)), True, True),
    ("fields change places", record(A, B), record(B, A), True, True),
    ("a field is renamed", record(A), record(B), False, False),
    ("a field is renamed with an alias", record(A), record(field("b", "int", aliases=["a"])), True, False),
    (
        "a field is renamed with a default and no alias",
        record(field("a", "int", default=0)),
        record(B_DEFAULT),
        True,
        True,
    ),
    ("an alias that nobody had", record(A), record(field("b", "int", aliases=["c"])), False, False),
    ("the record is renamed", record(A), record(A, name="S"), False, False),
    ("the record is renamed with an alias", record(A), record(A, name="S", aliases=["R"]), True, False),
    ("only the namespace changes", record(A, namespace="x"), record(A, namespace="y"), True, True),
    (
        "the record is renamed with a full alias",
        record(A, namespace="x"),
        record(A, name="S", namespace="y", aliases=["x.R"]),
        True,
        False,
    ),
    ("documentation is added", record(A), record(field("a", "int", doc="so"), doc="more"), True, True),
    ("an unknown attribute is added", record(A), record(field("a", "int", pii=True)), True, True),
    ("int to long", "int", "long", True, False),
    ("int to float", "int", "float", True, False),
    ("int to double", "int", "double", True, False),
    ("long to float", "long", "float", True, False),
    ("long to double", "long", "double", True, False),
    ("float to double", "float", "double", True, False),
    ("float to long", "float", "long", False, True),
    ("string to bytes", "string", "bytes", True, True),
    ("bytes to string", "bytes", "string", True, True),
    ("int to string", "int", "string", False, False),
    ("int to boolean", "int", "boolean", False, False),
    ("null to int", "null", "int", False, False),
    ("a field's type is promoted", record(A), record(field("a", "double")), True, False),
    ("a field's type is another", record(A), record(field("a", "string")), False, False),
    ("a type becomes a union with it", "int", ["null", "int"], True, False),
    ("a type becomes a union without it", "int", ["null", "string"], False, False),
    ("a type becomes a union that can read it", "int", ["null", "long"], True, False),
    ("a union becomes one of its types", ["null", "int"], "int", False, True),
    ("a union of one becomes the type", ["int"], "int", True, True),
    ("a branch is added", ["null", "int"], ["null", "int", "string"], True, False),
    ("a branch is removed", ["null", "int", "string"], ["null", "int"], False, True),
    ("branches change places", ["null", "int"], ["int", "null"], True, True),
    ("branches become wider", ["int", "string"], ["long", "bytes"], True, False),
    ("unions with nothing in common", ["null", "int"], ["boolean", "string"], False, False),
    (
        "a field becomes optional",
        record(A),
        record(field("a", ["null", "int"], default=None)),
        True,
        False,
    ),
    ("an optional field becomes mandatory", record(field("a", ["null", "int"])), record(A), False, True),
    ("a record in a union grows", ["null", record(A)], ["null", record(A, B_DEFAULT)], True, True),
    (
        "a record in a union grows without a default",
        ["null", record(A)],
        ["null", record(A, B)],
        False,
        True,
    ),
    ("a symbol is added", enum("A", "B"), enum("A", "B", "C"), True, False),
    ("a symbol is removed", enum("A", "B", "C"), enum("A", "B"), False, True),
    ("a symbol is removed, with a default", enum("A", "B", "C"), enum("A", "B", default="A"), True, True),
    (
        "a symbol is added, the old enum has a default",
        enum("A", "B", default="A"),
        enum("A", "B", "C", default="A"),
        True,
        True,
    ),
    ("symbols change places", enum("A", "B"), enum("B", "A"), True, True),
    ("the enum is renamed", enum("A"), enum("A", name="F"), False, False),
    ("the enum is renamed with an alias", enum("A"), enum("A", name="F", aliases=["E"]), True, False),
    ("an enum becomes a string", enum("A"), "string", False, False),
    ("a fixed grows", fixed(4), fixed(8), False, False),
    ("a fixed is renamed", fixed(4), fixed(4, name="G"), False, False),
    ("a fixed is renamed with an alias", fixed(4), fixed(4, name="G", aliases=["F"]), True, False),
    ("a fixed becomes bytes", fixed(4), "bytes", False, False),
    ("items are promoted", array("int"), array("long"), True, False),
    ("items are others", array("int"), array("string"), False, False),
    ("an array becomes a map", array("int"), table("int"), False, False),
    ("an array becomes its items", array("int"), "int", False, False),
    ("values are promoted", table("int"), table("double"), True, False),
    ("records in an array grow", array(record(A)), array(record(A, B_DEFAULT)), True, True),
    ("values become optional", table("string"), table(["null", "string"]), True, False),
    ("a recursive record grows", NODE, NODE_MORE, True, True),
    ("a recursive record changes a type", NODE, NODE_TEXT, False, False),
    (
        "a nested record grows without a default",
        record(field("n", record(A, name="N"))),
        record(field("n", record(A, B, name="N"))),
        False,
        True,
    ),
    ("a logical type is added", "bytes", DECIMAL, True, True),
    ("a logical type's scale changes", DECIMAL, {**DECIMAL, "scale": 3}, True, True),
    (
        "a date becomes a long",
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        True,
        False,
    ),
    ("a record becomes a map", record(A), table("int"), False, False),
    ("an empty record gets a field with a default", record(), record(B_DEFAULT), True, True),
    ("a string becomes an object's record", "string", record(A), False, False),
    (
        "an enum field gets a default of the enum, not of the field",
        record(A),
        record(A, field("e", enum("X", default="X"))),
        False,
        True,
    ),
)

CASES = tuple(
    Case(name, json.dumps(old), json.dumps(new), back, forth) for name, old, new, back, forth in _ROWS
)
