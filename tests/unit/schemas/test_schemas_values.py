"""JSON values to bytes and back: our writers against the libraries of the formats and against our readers."""

import io
import json
import random
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tests.unit.console.test_console_hostile_values import AVRO_SCHEMA, SCALARS, some_row
from tests.unit.console.test_console_schemas import AVRO_SCHEMA as ORDER_SCHEMA
from tests.unit.console.test_console_schemas import (
    AVRO_VALUE,
    CUSTOMER,
    MONEY,
    ORDER_VALUE,
    SHOP,
)
from tidelog.schemas import avro_writer
from tidelog.schemas.avro_reader import AvroSchema
from tidelog.schemas.decoding import reader_of
from tidelog.schemas.encoding import Encoder
from tidelog.schemas.misfit import DoesNotFit
from tidelog.schemas.protobuf_reader import read_indexes, read_message
from tidelog.schemas.protobuf_schema import parse
from tidelog.schemas.protobuf_writer import write_message
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, PROTOBUF, Reference, RegisteredSchema

SEED = 20261119


def written(schema: Any, value: Any) -> bytes:
    return avro_writer.write(AvroSchema(schema), value)


def test_avro_is_written_as_fastavro_writes_it() -> None:
    rng = random.Random(SEED)
    theirs = fastavro.parse_schema(AVRO_SCHEMA)
    for _ in range(100):
        row = some_row(rng)
        expected = io.BytesIO()
        fastavro.schemaless_writer(expected, theirs, row)
        assert written(AVRO_SCHEMA, json.loads(json.dumps(row, default=str))) == expected.getvalue()


def test_what_was_read_from_avro_can_be_written() -> None:
    schema = AvroSchema(ORDER_SCHEMA, [CUSTOMER])
    assert schema.read(avro_writer.write(schema, AVRO_VALUE)) == AVRO_VALUE


def decimal(**more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2, **more}


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        (decimal(), "-12.50", b"\x04\xfb\x1e"),
        (decimal(), 1.28, b"\x04\x00\x80"),
        (decimal(), "-1.28", b"\x02\x80"),
        (decimal(type="fixed", name="F", size=4), 1, b"\x00\x00\x00\x64"),
        ({"type": "int", "logicalType": "date"}, "1970-01-03", b"\x04"),
        ({"type": "int", "logicalType": "date"}, -1, b"\x01"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "1970-01-01T00:00:00.001Z", b"\x02"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "1970-01-01T01:00:00+01:00", b"\x00"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "1970-01-01T00:00:00.000001", b"\x02"),
        (["null", "string"], {"string": "x"}, b"\x02\x02x"),
        (["null", "string"], "x", b"\x02\x02x"),
        (["null", "string"], None, b"\x00"),
        (["int", "long"], 1 << 40, b"\x02\x80\x80\x80\x80\x80\x40"),
        (["int", "double"], 3.0, b"\x02" + b"\x00\x00\x00\x00\x00\x00\x08\x40"),
        (["bytes", "string"], {"string": "0xff"}, b"\x02\x080xff"),
        ([{"type": "map", "values": "int"}, "null"], {"a": 1}, b"\x00\x02\x02a\x02\x00"),
    ],
)
def test_avro_values(schema: Any, value: Any, data: bytes) -> None:
    assert written(schema, value) == data


def test_avro_unions_by_full_and_short_name_and_defaults() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "bytes", "default": "\u00ff"}]}
    schema = {
        "type": "record",
        "name": "n.R",
        "fields": [
            {"name": "one", "type": ["null", inner], "default": None},
            {"name": "two", "type": "I", "default": {}},
        ],
    }
    assert written(schema, {}) == b"\x00\x02\xff"
    values: list[Any] = [{}, {"n.I": {}}, {"I": {"b": "0xff"}}]
    for value in values:
        assert written(schema, {"one": value}) == b"\x02\x02\xff\x02\xff"


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ("int", 1 << 31, "the value: 2147483648 does not fit into the 32 bits of int"),
        ("int", True, "True is no int"),
        ("int", 3.0, "3.0 is no int"),
        ("long", "7", "'7' is no long"),
        ("boolean", 0, "0 is no boolean"),
        ("string", 1, "1 is no string"),
        ("string", "\ud800", "no Unicode"),
        ("bytes", "ff", "0x and hexadecimal"),
        ("bytes", "0xf", "0x and hexadecimal"),
        ("float", 1e300, "does not fit into a float"),
        (["null", "int"], "x", "the value: 'x' is no int"),
        (["string", "int"], 1.5, "1.5 fits none of string, int"),
        (decimal(), "1.234", "more than 2 digits behind the point"),
        (decimal(), "1234.56", "more than 5 digits"),
        (decimal(), "NaN", "digits behind the point"),
        (decimal(type="fixed", name="F", size=1), "9.00", "does not fit into 1 bytes"),
        ({"type": "int", "logicalType": "date"}, "yesterday", "no date in ISO form"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "'C' is none of A, B"),
        ({"type": "fixed", "name": "F", "size": 2}, "0x00", "1 bytes, not 2"),
        ({"type": "array", "items": "int"}, [1, "x"], "[1]: 'x' is no int"),
        ({"type": "array", "items": "int"}, {}, "is no list"),
        ({"type": "map", "values": "int"}, {"a": None}, "a: None is no int"),
        (AVRO_SCHEMA, {"nmuber": 1}, "no field 'nmuber'; it has number"),
        (AVRO_SCHEMA, {"number": 1}, "small: is missing, and has no default"),
    ],
)
def test_what_avro_does_not_take_is_told_with_its_place(schema: Any, value: Any, words: str) -> None:
    with pytest.raises(DoesNotFit) as fault:
        written(schema, value)
    assert words in str(fault.value)


def test_an_avro_union_that_is_tried_without_end_is_refused() -> None:
    schemas: list[Any] = []
    for level in range(1, 31):
        kind: Any = [f"a{level - 1}", f"b{level - 1}"] if level > 1 else "int"
        fields = [{"name": "f", "type": kind}]
        schemas += [{"type": "record", "name": f"{side}{level}", "fields": fields} for side in "ab"]
    value: Any = "no int"
    for _ in range(30):
        value = {"f": value}
    with pytest.raises(DoesNotFit, match="too many or too deep"):
        avro_writer.write(AvroSchema(["a30", "b30"], schemas), value)


def test_protobuf_is_written_as_the_library_reads_it() -> None:
    rng = random.Random(SEED)
    text = 'syntax = "proto3"; message Row { Row row = 100; repeated Row rows = 101; '
    text += "map<int32, Row> by_id = 102;"
    file = descriptor_pb2.FileDescriptorProto(name="written.proto", syntax="proto3")
    row = file.message_type.add(name="Row")
    for number, kind in enumerate(SCALARS, start=1):
        text += f" {kind} one_{kind} = {number}; repeated {kind} many_{kind} = {number + 50};"
        code = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        row.field.add(name=f"one_{kind}", number=number, type=code, label=1)
        row.field.add(name=f"many_{kind}", number=number + 50, type=code, label=3)
    row.field.add(name="row", number=100, type=11, type_name=".Row", label=1)
    row.field.add(name="rows", number=101, type=11, type_name=".Row", label=3)
    entry = row.nested_type.add(name="ByIdEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=5, label=1)
    entry.field.add(name="value", number=2, type=11, type_name=".Row", label=1)
    row.field.add(name="by_id", number=102, type=11, type_name=".Row.ByIdEntry", label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    library = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))
    schema = parse(text + "}")
    message = schema.message_at([0])

    def some_message(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {f"one_{kind}": make(rng) or 1 for kind, make in SCALARS.items()}
        made |= {f"many_{kind}": [make(rng) for _ in range(3)] for kind, make in SCALARS.items()}
        if depth < 2:
            made |= {"row": some_message(depth + 1), "rows": [some_message(2), some_message(2)]}
        return made

    for _ in range(30):
        value = some_message(0)
        given = json.loads(json.dumps(value, default=lambda data: f"0x{data.hex()}"))
        read = library.FromString(write_message(given, message, schema))
        assert read == library(**value)
    by_id = write_message({"byId": {"7": {"one_bool": True}}, "row": None}, message, schema)
    assert json_format.MessageToDict(library.FromString(by_id)) == {"byId": {"7": {"oneBool": True}}}


def test_what_was_read_from_protobuf_can_be_written() -> None:
    schema = parse(SHOP, [MONEY])
    order = schema.message_at([1])
    assert read_message(write_message(ORDER_VALUE, order, schema), 0, order, schema) == ORDER_VALUE


TIMES = """
syntax = "proto3"; import "google/protobuf/timestamp.proto";
message T { google.protobuf.Timestamp at = 1; }
"""


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("2026-01-31T12:00:00.250Z", "2026-01-31T12:00:00.25Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123456789Z"),
        ("2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00Z"),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.5Z"),
        ({"seconds": 1, "nanos": -1}, {"seconds": 1, "nanos": -1}),
    ],
)
def test_protobuf_timestamps_are_times(given: Any, read: Any) -> None:
    schema = parse(TIMES)
    data = write_message({"at": given}, schema.message_at([0]), schema)
    assert read_message(data, 0, schema.message_at([0]), schema) == {"at": read}


PROTO2 = """
syntax = "proto2"; package p;
message A {
  required int32 id = 1; oneof one { string x = 2; bytes y = 3; } optional E e = 4; repeated A more = 5;
  map<string, sint32> by = 6; optional Gone g = 7; optional bool flag = 8; optional double d = 9;
  message B { optional uint32 n = 1; }
  enum E { ZERO = 0; NEG = -1; }
}
"""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "id: is missing, and is required"),
        ({"id": 1, "x": "a", "y": "0x00"}, "x and y are one of one"),
        ({"id": 1, "z": 1}, "p.A has no field 'z'; it has id, x, y"),
        ({"id": 1 << 31}, "id: 2147483648 does not fit into int32"),
        ({"id": "seven"}, "id: 'seven' is no int32"),
        ({"id": 1.5}, "id: 1.5 is no int32"),
        ({"id": 1, "more": [{"id": 1}, {"id": None}]}, "more[1].id: is missing"),
        ({"id": 1, "more": {}}, "more: {} is no list"),
        ({"id": 1, "by": {"k": "x"}}, "by.k: 'x' is no sint32"),
        ({"id": 1, "e": "ONE"}, "'ONE' is none of ZERO, NEG"),
        ({"id": 1, "g": {}}, "names the type 'Gone'"),
        ({"id": 1, "flag": 1}, "flag: 1 is no bool"),
        ({"id": 1, "d": "x"}, "d: 'x' is no double"),
        ({"id": 1, "x": 5}, "x: 5 is no string"),
        ([], "the value: [] is no object"),
    ],
)
def test_what_protobuf_does_not_take_is_told_with_its_place(value: Any, words: str) -> None:
    schema = parse(PROTO2)
    with pytest.raises(DoesNotFit) as fault:
        write_message(value, schema.message_at([0]), schema)
    assert words in str(fault.value)


def test_a_message_that_holds_itself_too_often_is_refused() -> None:
    schema = parse(PROTO2)
    value: dict[str, Any] = {"id": 1}
    for _ in range(40):
        value = {"id": 1, "more": [value]}
    with pytest.raises(DoesNotFit, match="nested too deep"):
        write_message(value, schema.message_at([0]), schema)


def test_messages_by_name() -> None:
    schema = RegisteredSchema(3, PROTOBUF, PROTO2)
    assert Encoder(schema, "p.A.B").encode({"n": 1}) == b"\0\0\0\0\x03\x04\x00\x00\x08\x01"
    assert Encoder(schema, "A.B").encode({}) == b"\0\0\0\0\x03\x04\x00\x00"
    assert Encoder(schema).encode({"id": -1})[:6] == b"\0\0\0\0\x03\x00"
    assert read_indexes(b"\x04\x00\x00\x08\x01") == ([0, 0], 3)
    with pytest.raises(ValueError, match=r"no message 'C'; it has p\.A, p\.A\.B"):
        Encoder(schema, "C")
    with pytest.raises(ValueError, match="only a Protobuf schema"):
        Encoder(RegisteredSchema(1, AVRO, '"int"'), "A")


def test_json_keeps_to_its_schema_and_what_that_refers_to() -> None:
    address = Reference("address.json", '{"type": "object", "properties": {"city": {"type": "string"}}}')
    text = json.dumps(
        {"type": "object", "properties": {"home": {"$ref": "address.json"}}, "required": ["id"]}
    )
    encoder = Encoder(RegisteredSchema(9, JSON_SCHEMA, text, (address,)))
    good = {"id": 1, "home": {"city": "K\u00f6ln"}}
    data = encoder.encode(good)
    assert reader_of(encoder.schema).read(data[5:]) == good
    with pytest.raises(DoesNotFit, match=r"home\.city: 5 is not of type 'string'"):
        encoder.encode({"id": 1, "home": {"city": 5}})
    with pytest.raises(DoesNotFit, match="'id' is a required property"):
        encoder.encode({})
    absent = Encoder(RegisteredSchema(9, JSON_SCHEMA, text))
    with pytest.raises(DoesNotFit, match="the schema cannot be used"):
        absent.encode(good)


@pytest.mark.parametrize("text", ["[", '{"type": "record"}', '{"type": "array"}', "7"])
def test_schemas_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Encoder(RegisteredSchema(1, AVRO, text)).encode({})
