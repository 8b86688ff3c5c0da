"""JSON Schema as typed columns: which columns a schema has, and what becomes of values."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tidelog.pipelines.framed_values import FramedValues, format_of
from tidelog.pipelines.json_columns import TYPES_MAX, json_type
from tidelog.schemas.framing import framed
from tidelog.schemas.registered import JSON_SCHEMA, Reference, RegisteredSchema, RegisteredSchemas

ORDER = {
    "type": "object",
    "definitions": {"money": {"type": "number"}},
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["null", "string"]},
        "total": {"$ref": "#/definitions/money"},
        "paid": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        "lines": {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}},
        "prices": {"type": "object", "additionalProperties": {"$ref": "price.json#/definitions/money"}},
        "anything": {},
    },
}


def test_types() -> None:
    assert json_type(ORDER, {"price.json": ORDER}).type == pa.struct(
        [
            ("id", pa.int64()),
            ("note", pa.string()),
            ("total", pa.float64()),
            ("paid", pa.bool_()),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
            ("prices", pa.map_(pa.string(), pa.float64())),
            ("anything", pa.string()),
        ]
    )


@pytest.mark.parametrize(
    "schema",
    [True, {}, {"type": "object"}, {"enum": [1, "a"]}, {"oneOf": [{"type": "string"}, {"type": "number"}]}],
)
def test_what_has_no_type_of_its_own_is_json_text(schema: Any) -> None:
    made = json_type(schema)
    assert (made.type, made.read({"a": [1, None]}), made.read(None)) == (pa.string(), '{"a":[1,null]}', None)


def test_a_schema_that_holds_itself_is_text_inside() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "gone": {"$ref": "#/definitions/no"}}}
    made = json_type(tree)
    assert made.type == pa.struct([("next", pa.string()), ("gone", pa.string())])
    assert made.read({"next": {"next": None}}) == {"next": '{"next":null}', "gone": None}


def test_references_do_not_multiply_without_end() -> None:
    levels = {
        f"l{n}": {"properties": {c: {"$ref": f"#/definitions/l{n + 1}"} for c in "abcdefgh"}}
        for n in range(20)
    }
    with pytest.raises(ValueError, match=f"more than {TYPES_MAX} types"):
        json_type({"$ref": "#/definitions/l0", "definitions": levels})


class Registry(RegisteredSchemas):
    def __init__(self) -> None:
        pass

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(
            schema_id, JSON_SCHEMA, json.dumps(ORDER), (Reference("price.json", json.dumps(ORDER)),)
        )


def test_values_in_bulk() -> None:
    registry = Registry()
    decoder = FramedValues(registry, format_of(registry.by_id(1), None).columns)
    good = {
        "id": 1.0,
        "note": "ü",
        "total": 2,
        "lines": [{"sku": "a"}, None],
        "prices": {"x": 1.5},
        "more": 1,
    }
    texts = [json.dumps(good), "{}", "null", '{"id": "1"}', "{", '{"id": true}', '{"note": "\\ud800"}']
    texts += ['{"prices": {"\\ud800": 1}}', '{"id": 9223372036854775808}', '{"lines": {}}', "[" * 5_000]
    found, faults = decoder.read(pa.array([None, *(framed(1, text.encode()) for text in texts)], pa.binary()))
    [written] = found
    assert written.rows.tolist() == [1, 2, 3]
    first = written.values[0].as_py()
    assert first["id"] == 1 and first["total"] == 2.0 and first["lines"] == [{"sku": "a"}, None]
    assert first["prices"] == [("x", 1.5)] and first["anything"] is None
    assert written.values[1].as_py()["id"] is None and written.values[2].as_py() is None
    assert sorted(faults) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert faults[4] == "schema 1: id: '1' is not an integer of 64 bits"
    assert faults[10] == "schema 1: lines: {} is not an array"
