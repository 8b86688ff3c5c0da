"""Verdicts about compatibility: more than 200 pairs of schemas as a table, and the seven levels."""

from collections.abc import Iterator
from typing import Any

import avro.compatibility as avro_compatibility
import avro.schema as avro_library
import pytest

from tests.unit.registry import avro_cases, json_cases, protobuf_cases
from tests.unit.registry.avro_cases import Case
from tidelog.registry.compatibility import LEVELS, Earlier, incompatibilities
from tidelog.registry.faults import BadSchema
from tidelog.registry.formats import avro_schema, json_schema, protobuf_schema
from tidelog.registry.formats.parsed import LENIENT, STRICT, Parsed
from tidelog.registry.formats.parsing import Parser
from tidelog.registry.formats.protoc import COMPILER

TABLES = {"AVRO": avro_cases.CASES, "JSON": json_cases.CASES, "PROTOBUF": protobuf_cases.CASES}
ROWS = [
    pytest.param(kind, case, id=f"{kind}: {case.name}") for kind, cases in TABLES.items() for case in cases
]
PARSER = Parser()


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> Iterator[None]:
    yield
    COMPILER.close()


def test_the_table_is_large_enough() -> None:
    assert sum(len(cases) for cases in TABLES.values()) >= 200
    assert all(len(cases) >= 50 for cases in TABLES.values())
    assert all(len({case.name for case in cases}) == len(cases) for cases in TABLES.values())


@pytest.mark.parametrize(("kind", "case"), ROWS)
def test_verdicts_are_confluents(kind: str, case: Case) -> None:
    old, new = PARSER.parse(kind, case.old, ()), PARSER.parse(kind, case.new, ())
    backward = incompatibilities("BACKWARD", STRICT, new, [Earlier(1, old)])
    forward = incompatibilities("FORWARD", STRICT, new, [Earlier(1, old)])
    assert (not backward, not forward) == (case.backward, case.forward), backward + forward
    full = incompatibilities("FULL", STRICT, new, [Earlier(1, old)])
    assert bool(full) == bool(backward or forward)


ONE = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
ONE_TWO = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":0}]}'
)
TWO = '{"type":"record","name":"R","fields":[{"name":"b","type":"int"}]}'


@pytest.mark.parametrize(
    ("level", "fits"),
    [
        ("NONE", True),
        ("BACKWARD", True),  # TWO reads ONE_TWO
        ("BACKWARD_TRANSITIVE", False),  # but not ONE
        ("FORWARD", False),  # ONE_TWO needs a
        ("FORWARD_TRANSITIVE", False),
        ("FULL", False),
        ("FULL_TRANSITIVE", False),
    ],
)
def test_each_level_counts_the_versions_it_names(level: str, fits: bool) -> None:
    earlier = [Earlier(1, avro(ONE)), Earlier(2, avro(ONE_TWO))]
    assert (not incompatibilities(level, STRICT, avro(TWO), earlier)) == fits
    assert level in LEVELS


def test_forward_looks_at_the_latest_and_transitive_at_all() -> None:
    earlier = [Earlier(1, avro(TWO)), Earlier(2, avro(ONE_TWO))]
    assert not incompatibilities("FORWARD", STRICT, avro(ONE), [earlier[0], Earlier(2, avro(ONE))])
    messages = incompatibilities("FORWARD_TRANSITIVE", STRICT, avro(ONE), [earlier[0], Earlier(2, avro(ONE))])
    assert "{oldSchemaVersion: 1}" in messages
    assert "{compatibility: 'FORWARD_TRANSITIVE'}" in messages


def test_the_first_version_fits_every_level() -> None:
    assert all(not incompatibilities(level, STRICT, avro(ONE), []) for level in LEVELS)


def test_another_type_is_never_compatible() -> None:
    text = json_schema.parse('{"type": "string"}', ())
    assert incompatibilities("BACKWARD", STRICT, text, [Earlier(1, avro('"string"'))])
    assert incompatibilities("BACKWARD", STRICT, avro('"string"'), [Earlier(1, text)])


def test_the_lenient_policy_takes_optional_properties() -> None:
    old = json_schema.parse('{"type":"object","properties":{}}', ())
    new = json_schema.parse('{"type":"object","properties":{"a":{"type":"string"}}}', ())
    assert incompatibilities("BACKWARD", STRICT, new, [Earlier(1, old)])
    assert not incompatibilities("BACKWARD", LENIENT, new, [Earlier(1, old)])


def avro(text: str) -> Parsed:
    return avro_schema.parse(text, ())


DEEP = 150


def deep_json(leaf: str) -> str:
    return '{"allOf":[' * (DEEP // 2) + leaf + "]}" * (DEEP // 2)


def entangled_json(kind: str) -> str:
    """Choices of choices: without a limit, a comparison of two of them takes for ever."""
    parts = ",".join(f'"d{i}":{{"oneOf":[{",".join(_refs(i))}]}}' for i in range(40))
    return f'{{"$ref":"#/definitions/d39","definitions":{{"leaf":{{"type":"{kind}"}},{parts}}}}}'


def _refs(index: int) -> list[str]:
    if index == 0:
        return ['{"$ref":"#/definitions/leaf"}', '{"type":"boolean"}']
    return [f'{{"$ref":"#/definitions/d{each}"}}' for each in range(index)]


def test_deep_and_entangled_schemas_are_compared_or_refused() -> None:
    for old, new in (
        (deep_json('{"type":"string"}'), deep_json('{"type":"number"}')),
        (entangled_json("string"), entangled_json("number")),
    ):
        with_limits = json_schema.parse(old, ())
        try:
            found = json_schema.parse(new, ()).unreadable(with_limits, STRICT)
        except BadSchema:
            continue
        assert found


def test_files_that_everybody_imports_are_there() -> None:
    text = """
        syntax = "proto3"; import "google/type/money.proto"; import "google/protobuf/any.proto";
        import "confluent/meta.proto"; import "confluent/type/decimal.proto";
        message M {
          google.type.Money m = 1; google.protobuf.Any a = 2; confluent.type.Decimal d = 3;
          string s = 4 [(confluent.field_meta).doc = "so"];
        }
    """
    assert protobuf_schema.parse(text, ()).identity()


def test_records_are_compared_in_proportion_to_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library makes a table of all fields for each, and its hash of a pair is often that of another."""
    table: Any = avro_library.RecordSchema.fields_dict
    made: list[int] = []

    def counted(record: Any) -> Any:
        made.append(1)
        return table.fget(record)

    monkeypatch.setattr(avro_library.RecordSchema, "fields_dict", property(counted))
    monkeypatch.delattr(avro_compatibility, "ReaderWriter")
    fields = ",".join(f'{{"name":"f{i}","type":"int"}}' for i in range(500))
    wide = avro(f'{{"type":"record","name":"R","fields":[{fields}]}}')
    assert not wide.unreadable(wide, STRICT)
    assert len(made) == 1


def test_patterns_of_property_names_are_steps_too() -> None:
    patterns = ",".join(f'"^{i}":{{"type":"string"}}' for i in range(1_000))
    closed = f'"additionalProperties":false,"patternProperties":{{{patterns}}}'
    names = ",".join(f'"p{i}":{{}}' for i in range(1_000))
    old = json_schema.parse(f'{{{closed},"properties":{{{names}}}}}', ())
    with pytest.raises(BadSchema, match="too long"):
        json_schema.parse(f'{{{closed},"properties":{{}}}}', ()).unreadable(old, STRICT)


def test_wide_unions_end() -> None:
    wide = "[" + ",".join(f'{{"type":"fixed","name":"F{i}","size":1}}' for i in range(1_000)) + "]"
    other = wide.replace('"size":1', '"size":2')
    with pytest.raises(BadSchema, match="too long"):
        avro(other).unreadable(avro(wide), STRICT)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", "{"),
        ("AVRO", "[" * 5_000),
        ("AVRO", '{"type":"record","name":"R"}'),
        ("AVRO", '{"type":"record","name":"R","fields":[{"name":"a","type":"Missing"}]}'),
        ("AVRO", '{"type":"record","name":"1","fields":[]}'),
        ("AVRO", "12"),
        ("AVRO", "[" + "1," * 60_000 + "1]"),
        ("JSON", "12"),
        ("JSON", '{"type":"nothing"}'),
        ("JSON", '{"properties":[]}'),
        ("JSON", '{"minLength":-1}'),
        ("JSON", '{"$ref":"other.json"}'),
        ("JSON", '{"$ref":"#/definitions/a","definitions":{"a":{"$ref":"#/definitions/a"}}}'),
        ("PROTOBUF", "message M {"),
        ("PROTOBUF", 'syntax = "proto3"; message M { N n = 1; }'),
        ("PROTOBUF", 'syntax = "proto3"; import "other.proto";'),
        ("PROTOBUF", 'syntax = "proto3"; import "/etc/passwd";'),
        ("PROTOBUF", 'syntax = "proto3"; message M { int32 i = 1; int32 j = 1; }'),
        ("PROTOBUF", "!!!"),
        ("THRIFT", "struct S {}"),
    ],
)
def test_what_is_no_schema_is_refused(kind: str, text: str) -> None:
    with pytest.raises(BadSchema):
        Parser().parse(kind, text, ())


def test_a_protobuf_descriptor_becomes_a_text_and_back() -> None:
    text = """
        syntax = "proto3"; package p;
        message M {
          map<string, N> m = 1;
          oneof o { int32 i = 2; string s = 3; }
          optional bool b = 4;
          repeated E e = 5 [packed = false];
          reserved 9 to 11;
          message N { double d = 1; }
          enum E { option allow_alias = true; A = 0; B = 0; }
        }
        service V { rpc Get (M) returns (stream M); }
    """
    first = protobuf_schema.parse(text, ())
    again = protobuf_schema.parse(first.rendered("serialized"), ())
    assert again.identity() == first.identity()
    assert protobuf_schema.parse(again.text, ()).identity() == first.identity()
    assert "optional bool b = 4;" in again.text
    assert "map<string, .p.M.N> m = 1;" in again.text
