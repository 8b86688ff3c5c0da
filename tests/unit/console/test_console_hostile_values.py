"""Values that lie, and the readers of Avro, MessagePack and Protobuf held against the libraries.

What a record may cost is bounded by what it is, not by what it claims: `PEAK_BYTES_MAX` is far below what the
libraries allocate for the same bytes (ADR 19), and a record never ends the process. The clock is that of
pytest's timeout: a bomb takes minutes.
"""

import datetime
import io
import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import fastavro
import msgpack
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tidelog.console import message_pack
from tidelog.console.decoding import STRUCTURE_BYTES_MAX
from tidelog.schemas.avro_reader import AvroSchema
from tidelog.schemas.protobuf_reader import read_message
from tidelog.schemas.protobuf_schema import parse

PEAK_BYTES_MAX = 8 << 20
RECORD_BYTES = STRUCTURE_BYTES_MAX
SEED = 20261118

pytestmark = pytest.mark.timeout(30)


def refused(read: Callable[[], object]) -> str:
    """Why a value is refused; it must not have cost much."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as fault:
            read()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX
    return str(fault.value)


def repeated(piece: bytes) -> bytes:
    return piece * (RECORD_BYTES // len(piece))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (repeated(b"\x91"), "too deep"),
        (repeated(b"\x81\xa1a"), "too deep"),
        (repeated(b"\x81\x91"), "too deep"),
        # Each of the nested arrays claims what the record has room for.
        (repeated(b"\xdd\x00\x03\x00\x00"), "too deep"),
        (repeated(b"\xdf\x00\x01\x80\x00"), "too deep"),
        (b"\xdd\xff\xff\xff\xff", "cut off"),
        (b"\xdf\x7f\xff\xff\xff\xc0", "cut off"),
        (b"\xc6\xff\xff\xff\xff", "cut off"),
        (b"\xdb\xff\xff\xff\xffabc", "cut off"),
        (b"\xc9\xff\xff\xff\xff\x01", "exceeds"),
        (b"\xdd\x00\x0f\x00\x00" + repeated(b"\xc0"), "too many"),
        (b"\xc7\x05\xff12345", ""),
    ],
)
def test_message_pack_that_lies(data: bytes, words: str) -> None:
    assert words in refused(lambda: message_pack.unpack(data))


LINKED = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def laughs() -> list[dict[str, Any]]:
    """Records of ten records each: ten thousand million values, and not one byte."""
    schemas: list[dict[str, Any]] = [{"type": "record", "name": "R0", "fields": []}]
    for level in range(1, 11):
        fields = [{"name": f"f{number}", "type": f"R{level - 1}"} for number in range(10)]
        schemas.append({"type": "record", "name": f"R{level}", "fields": fields})
    return schemas


@pytest.mark.parametrize(
    ("schema", "data", "words"),
    [
        (LINKED, repeated(b"\x02"), "too deep"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, b"", "too deep"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\x7f", "too many"),
        ({"type": "array", "items": "null"}, b"\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "too many"),
        ({"type": "map", "values": "null"}, b"\xfe\xff\xff\xff\x0f", "too many"),
        ("string", b"\xfe\xff\xff\xff\xff\x7f", "cut off"),
        ("bytes", b"\x01", "cut off"),
        ({"type": "fixed", "name": "F", "size": 1 << 40}, b"x", "cut off"),
        ("long", repeated(b"\xff"), "too many bytes"),
        ("nothing", b"", "does not define it"),
    ],
)
def test_avro_that_lies(schema: Any, data: bytes, words: str) -> None:
    assert words in refused(lambda: AvroSchema(schema).read(data))


def test_an_avro_schema_that_grows_without_bytes() -> None:
    *references, schema = laughs()
    assert "too many" in refused(lambda: AvroSchema(schema, references).read(b""))


WIDE = "message W {" + "".join(f"int64 f{number} = {number};" for number in range(1, 301)) + "}"


@pytest.mark.parametrize(
    ("text", "data", "words"),
    [
        ("message O { repeated W w = 1; }" + WIDE, repeated(b"\x0a\x00"), "too many"),
        ("message O { repeated bool b = 1; }", b"\x0a\x80\x80\x3c" + b"\x01" * 983_040, "too many"),
        ("message O { O o = 1; }", b"", ""),
        ("message O { string s = 1; }", b"\x0a\xff\xff\xff\xff\x07", "cut off"),
        ("message O { }", b"\x0b" * 1_000, "wire type"),
    ],
)
def test_protobuf_that_lies(text: str, data: bytes, words: str) -> None:
    schema = parse(text)
    if not data:
        data = b"\x0a\x00"
        while len(data) < 60_000:
            size = len(data)
            head = bytearray(b"\x0a")
            while size > 0x7F:
                head.append(size & 0x7F | 0x80)
                size >>= 7
            data = bytes(head) + bytes([size]) + data
        words = "too deep"
    assert words in refused(lambda: read_message(data, 0, schema.message_at([0]), schema))


@pytest.mark.parametrize("text", ["message A {" * 100_000, "message A { A a = 1; " * 40, "enum E {" * 9_999])
def test_protobuf_schemas_that_lie(text: str) -> None:
    refused(lambda: parse(text))


# Against the libraries


def some_json(rng: random.Random, depth: int) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice((rng.randint(-40, 200), rng.randint(-(2**63), 2**64 - 1))),
        lambda: rng.uniform(-1e9, 1e9),
        lambda: "gr\u00fc\u00dfe" * rng.randrange(20),
        lambda: [some_json(rng, depth + 1) for _ in range(rng.randrange(20))],
        lambda: {f"k{number}": some_json(rng, depth + 1) for number in range(rng.randrange(20))},
    ]
    return rng.choice(makers if depth < 3 else makers[:5])()


def test_message_pack_as_the_library_writes_it() -> None:
    rng = random.Random(SEED)
    for _ in range(300):
        value = some_json(rng, 0)
        assert message_pack.unpack(msgpack.packb(value)) == value


AVRO_SCHEMA = {
    "type": "record",
    "name": "Row",
    "namespace": "a.b",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "ratio", "type": "double"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "flags", "type": {"type": "array", "items": "boolean"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "again", "type": {"type": "map", "values": "Kind"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "children", "type": {"type": "array", "items": "Row"}},
    ],
}


def some_row(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    return {
        "number": rng.randint(-(2**63), 2**63 - 1),
        "small": rng.randint(-(2**31), 2**31 - 1),
        "ratio": rng.uniform(-1e9, 1e9),
        "text": rng.choice((None, "", "gr\u00fc\u00dfe" * rng.randrange(30))),
        "flags": [rng.random() < 0.5 for _ in range(rng.randrange(100))],
        "kind": rng.choice("ABC"),
        "again": {f"k{number}": rng.choice("ABC") for number in range(rng.randrange(4))},
        "day": datetime.date.fromordinal(rng.randint(1, 3_000_000)),
        "children": [some_row(rng, depth + 1) for _ in range(rng.randrange(3) if depth < 3 else 0)],
    }


def test_avro_as_fastavro_writes_it() -> None:
    rng = random.Random(SEED)
    theirs, ours = fastavro.parse_schema(AVRO_SCHEMA), AvroSchema(AVRO_SCHEMA)
    for _ in range(100):
        row = some_row(rng)
        written = io.BytesIO()
        fastavro.schemaless_writer(written, theirs, row)
        assert ours.read(written.getvalue()) == json.loads(json.dumps(row, default=str))


SCALARS: dict[str, Callable[[random.Random], Any]] = {
    "double": lambda rng: rng.uniform(-1e300, 1e300),
    "float": lambda rng: struct.unpack("<f", struct.pack("<f", rng.uniform(-1e9, 1e9)))[0],
    "int32": lambda rng: rng.randint(-(2**31), 2**31 - 1),
    "int64": lambda rng: rng.randint(-(2**63), 2**63 - 1),
    "uint32": lambda rng: rng.randrange(2**32),
    "uint64": lambda rng: rng.randrange(2**64),
    "sint32": lambda rng: rng.randint(-(2**31), 2**31 - 1),
    "sint64": lambda rng: rng.randint(-(2**63), 2**63 - 1),
    "fixed32": lambda rng: rng.randrange(2**32),
    "fixed64": lambda rng: rng.randrange(2**64),
    "sfixed32": lambda rng: rng.randint(-(2**31), 2**31 - 1),
    "sfixed64": lambda rng: rng.randint(-(2**63), 2**63 - 1),
    "bool": lambda rng: True,
    "string": lambda rng: "gr\u00fc\u00dfe" * rng.randint(1, 30),
    "bytes": lambda rng: rng.randbytes(rng.randint(1, 200)),
}


def test_protobuf_as_the_library_writes_it() -> None:
    """A message with every scalar type, alone and repeated, as text for us and as a descriptor for it."""
    rng = random.Random(SEED)
    text = 'syntax = "proto3"; message Row { Row row = 100; repeated Row rows = 101;'
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto3")
    row = file.message_type.add(name="Row")
    for number, kind in enumerate(SCALARS, start=1):
        text += f" {kind} one_{kind} = {number}; repeated {kind} many_{kind} = {number + 50};"
        code = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        row.field.add(name=f"one_{kind}", number=number, type=code, label=1)
        row.field.add(name=f"many_{kind}", number=number + 50, type=code, label=3)
    row.field.add(name="row", number=100, type=11, type_name=".Row", label=1)
    row.field.add(name="rows", number=101, type=11, type_name=".Row", label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))
    schema = parse(text + "}")

    def some_message(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {f"one_{kind}": make(rng) or 1 for kind, make in SCALARS.items()}
        made |= {f"many_{kind}": [make(rng) for _ in range(3)] for kind, make in SCALARS.items()}
        if depth < 3:
            made |= {"row": some_message(depth + 1), "rows": [some_message(3), some_message(3)]}
        return made

    for _ in range(40):
        value = some_message(0)
        found = read_message(message(**value).SerializeToString(), 0, schema.message_at([0]), schema)
        assert found == json.loads(json.dumps(value, default=lambda data: f"0x{data.hex()}"))
