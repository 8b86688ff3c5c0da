"""Values of a topic with schemas of a registry: what options mean, and what becomes of each record."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tidelog.client.faults import BadOption
from tidelog.pipelines import decoded_values
from tidelog.pipelines.decode_options import DecodeOptions
from tidelog.pipelines.decoded_values import (
    BYTES_COLUMN,
    FAULT_COLUMN,
    Decoding,
    Undecodable,
    ValueDecoder,
    chosen_schema,
)
from tidelog.schemas.encoding import Encoder
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, PROTOBUF, RegisteredSchema, RegisteredSchemas
from tidelog.schemas.registry_client import RegistryFault, RegistryUnreachable

GIVEN = {"decode": "avro", "schema.registry.url": "http://localhost:1"}


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


ID = {"name": "id", "type": "int"}
OLD = RegisteredSchema(1, AVRO, record(ID, {"name": "gone", "type": "string"}))
NEW = RegisteredSchema(
    2, AVRO, record({**ID, "type": "long"}, {"name": "note", "type": "string", "default": "-"})
)
OTHER = RegisteredSchema(3, AVRO, '"string"')
JSON = RegisteredSchema(4, JSON_SCHEMA, "{}")
PROTO = """
syntax = "proto3"; package p;
message A { int32 id = 1; message B { string text = 1; } }
message C { int32 id = 1; }
"""
#: C is where A was, and A has another field
PROTO_LATER = """
syntax = "proto3"; package p;
message C { int32 id = 1; }
message A { int32 id = 1; string more = 2; message B { string text = 1; } }
"""
FIRST, LATER = RegisteredSchema(5, PROTOBUF, PROTO), RegisteredSchema(6, PROTOBUF, PROTO_LATER)
ALL = (OLD, NEW, OTHER, JSON, FIRST, LATER)


class Registry(RegisteredSchemas):
    """A registry of some schemas, that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __repr__(self) -> str:
        return f"<Registry asked={self.asked}>"

    def by_id(self, schema_id: int) -> RegisteredSchema:
        self.asked.append(schema_id)
        if schema_id == 500:
            raise RegistryUnreachable("it is away")
        if schema_id > len(ALL):
            raise RegistryFault(40403, "Schema not found")
        return ALL[schema_id - 1]

    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        self.asked.append((subject, version))
        if subject == "gone-value":
            raise RegistryFault(40401, "Subject 'gone-value' not found.")
        return {"latest": NEW, "1": OLD}[str(version)]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(decoded_values, "registered_schemas", lambda url, user_info: made)
    return made


def options(topics: tuple[str, ...] = ("orders",), **more: str) -> DecodeOptions:
    given = GIVEN | {name.replace("_", "."): value for name, value in more.items()}
    found = DecodeOptions.read(given, topics)
    assert found is not None
    return found


def batch(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(70, 70 + count), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def values_of(found: pa.RecordBatch, name: str = "value") -> list[Any]:
    found.validate(full=True)
    return list(found.column(name).to_pylist())


def test_records_of_several_schemas_come_out_as_one(registry: Registry) -> None:
    old, new = Encoder(OLD).encode, Encoder(NEW).encode
    decoder = ValueDecoder(Decoding(options(), NEW))
    given = batch(old({"id": 1, "gone": "x"}), new({"id": 2, "note": "n"}), None, old({"id": 3, "gone": ""}))
    assert values_of(decoder.decoded(given)) == [
        {"id": 1, "note": "-"},
        {"id": 2, "note": "n"},
        None,
        {"id": 3, "note": "-"},
    ]
    assert values_of(decoder.decoded(given.slice(1, 2))) == [{"id": 2, "note": "n"}, None]
    assert values_of(decoder.decoded(given.slice(2, 1))) == [None]
    assert values_of(decoder.decoded(batch())) == []
    assert registry.asked == [1, 2], "each schema is asked for once"


BAD = (
    b"plain",
    b"",
    b"\0\0\0\0",
    b"\0\0\0\0\x01\x02",
    b"\0\0\0\0\x63\x02",
    b"\0\0\0\0\x03\x02x",
    b"\0\0\0\0\x04{}",
)
REASONS = (
    *["it is not framed with a schema id"] * 3,
    "schema 1: the value is cut off",
    "the registry does not know schema 99",
    "schema 3: string cannot be read as R",
    "schema 4: it is json-schema, not avro",
)


def test_bad_records_stand_beside_good_ones(registry: Registry) -> None:
    decoder = ValueDecoder(Decoding(options(decode_mode="PERMISSIVE"), NEW))
    good = Encoder(NEW).encode({"id": 5, "note": "n"})
    found = decoder.decoded(batch(good, *BAD, None, good))
    assert values_of(found) == [{"id": 5, "note": "n"}, *[None] * 8, {"id": 5, "note": "n"}]
    assert values_of(found, BYTES_COLUMN) == [None, *BAD, None, None]
    assert values_of(found, FAULT_COLUMN) == [None, *REASONS, None, None]
    only_bad = decoder.decoded(batch(*BAD))
    assert values_of(only_bad) == [None] * 7 and values_of(only_bad, FAULT_COLUMN) == list(REASONS)


@pytest.mark.parametrize(("data", "reason"), list(zip(BAD, REASONS, strict=True)))
def test_a_bad_record_fails_with_its_place(registry: Registry, data: bytes, reason: str) -> None:
    decoder = ValueDecoder(Decoding(options(), NEW))
    with pytest.raises(Undecodable) as fault:
        decoder.decoded(batch(Encoder(NEW).encode({"id": 5}), data))
    assert str(fault.value) == f"orders-3, offset 71: {reason}"


def test_messages_are_told_apart_by_their_names(registry: Registry) -> None:
    asked = options(decode="protobuf", decode_mode="permissive", decode_message="A")
    decoder = ValueDecoder(Decoding(asked, LATER))
    given = batch(
        Encoder(FIRST).encode({"id": 1}),
        Encoder(LATER, "A").encode({"id": 2, "more": "m"}),
        Encoder(FIRST, "C").encode({"id": 3}),
        Encoder(FIRST, "A.B").encode({"text": "t"}),
        Encoder(FIRST).encode({"id": 4}),
        b"\0\0\0\0\x05",
        b"\0\0\0\0\x05\x02\x12\x08\x01",
        Encoder(FIRST).encode({}),
        Encoder(FIRST).encode({})[:5] + b"\x00\x08",
        Encoder(NEW).encode({"id": 1}),
    )
    found = decoder.decoded(given)
    assert values_of(found) == [
        {"id": 1, "more": None},
        {"id": 2, "more": "m"},
        None,
        None,
        {"id": 4, "more": None},
        None,
        None,
        {"id": None, "more": None},
        None,
        None,
    ]
    reasons = values_of(found, FAULT_COLUMN)
    assert reasons[2:4] == ["schema 5: it is a p.C, not a p.A", "schema 5: it is a p.A.B, not a p.A"]
    assert [reason is None for reason in reasons] == [one is not None for one in values_of(found)]
    assert reasons[9] == "schema 2: it is avro, not protobuf"
    assert ValueDecoder(Decoding(options(decode="protobuf"), FIRST)).type == pa.struct([("id", pa.int32())])
    with pytest.raises(BadOption, match="has no message 'Z'"):
        ValueDecoder(Decoding(options(decode="protobuf", decode_message="Z"), FIRST))


def test_a_registry_that_is_away_makes_no_record_bad(registry: Registry) -> None:
    decoder = ValueDecoder(Decoding(options(decode_mode="permissive"), NEW))
    with pytest.raises(RegistryUnreachable):
        decoder.decoded(batch(b"\0\0\0\x01\xf4\x02"))


def test_the_schema_of_the_columns(registry: Registry) -> None:
    assert chosen_schema(options()).schema == NEW
    assert chosen_schema(options(decode_schema="1")).schema == OLD
    assert chosen_schema(options(), 1).schema == OLD, "what was chosen before stays"
    assert chosen_schema(options((), decode_schema="id:2")).schema == NEW
    assert chosen_schema(options((), decode_subject="all")).schema == NEW
    assert registry.asked == [("orders-value", "latest"), ("orders-value", "1"), 1, 2, ("all", "latest")]
    for topics, more, words in (
        (("orders",), {"decode_schema": "newest"}, "latest, the number of a version, or id:7"),
        (("orders",), {"decode_schema": "id:4"}, "decode is avro, and schema 4 is json-schema"),
        (("gone",), {}, "refuses schema latest of gone-value: Subject 'gone-value' not found"),
        (("orders",), {"decode_schema": "id:500"}, "it is away"),
    ):
        with pytest.raises(BadOption, match=words):
            chosen_schema(options(topics, **more))


@pytest.mark.parametrize(
    ("given", "topics", "words"),
    [
        ({"decode.mode": "permissive"}, ("a",), "decode.mode says how to decode"),
        ({"decode": "avro"}, ("a",), "schema.registry.url"),
        ({**GIVEN, "decode": "thrift"}, ("a",), "decode is "),
        ({**GIVEN, "decode.mode": "ignore"}, ("a",), "decode.mode is failfast or permissive"),
        (GIVEN, ("a", "b"), "decode.subject names"),
        (GIVEN, (), "decode.subject names"),
        ({**GIVEN, "decode.message": "A"}, ("a",), "decode.message is for decode=protobuf"),
    ],
)
def test_options_that_cannot_be_meant(given: dict[str, str], topics: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        DecodeOptions.read(given, topics)


def test_options_are_off_and_secrets_unseen() -> None:
    assert DecodeOptions.read({}, ("a",)) is None
    secret = options(schema_registry_basic_auth_user_info="ann:s3cret")
    assert secret.user_info == "ann:s3cret" and "s3cret" not in repr(secret)


def test_a_fault_does_not_show_the_password_of_an_address(registry: Registry) -> None:
    asked = options(("gone",), schema_registry_url="http://ann:s3cret@host:1")
    with pytest.raises(BadOption, match="host:1") as fault:
        chosen_schema(asked)
    assert "s3cret" not in str(fault.value) and "s3cret" not in repr(asked)
