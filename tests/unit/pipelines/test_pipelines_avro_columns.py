"""Avro to columns: against fastavro for random schemas, values and evolutions; and values that lie."""

import datetime
import decimal
import io
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from tidelog.pipelines.avro_columns import HoldsItself, NoColumns, plan
from tidelog.pipelines.packed_values import Cursor
from tidelog.schemas.avro_reader import AvroSchema

SEED = 20261119
NAMES = ("a", "b", "c", "d", "e")


def written(schema: Any, *values: Any) -> list[bytes]:
    theirs = fastavro.parse_schema(schema)
    made = []
    for value in values:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, theirs, value)
        made.append(data.getvalue())
    return made


def columns(data: list[bytes], writer: Any, reader: Any = None) -> tuple[list[Any], list[bool]]:
    """What is read, and which values are bad."""
    wanted = plan(AvroSchema(writer), AvroSchema(writer if reader is None else reader))
    cursor = Cursor.over(pa.array(data, pa.binary()))
    found = wanted.read(cursor)
    found.validate(full=True)
    assert found.type == wanted.type
    return plain(found.to_pylist()), list(cursor.bad | (cursor.position != cursor.end))


def plain(value: Any) -> Any:
    """Maps come out of Arrow as pairs."""
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: plain(one) for key, one in value}
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


class World:
    """Schemas, values of them, and readers that can read them."""

    def __init__(self, seed: int, *, logical: bool = True) -> None:
        self._logical = logical
        self._rng = random.Random(seed)
        self._names = 0

    def schema(self, depth: int = 0) -> Any:
        makers: list[Callable[[], Any]] = [
            *[lambda: self._rng.choice(("int", "long", "float", "double", "boolean", "bytes", "string"))] * 7,
            lambda: {"type": "int", "logicalType": "date"},
            lambda: {
                "type": "long",
                "logicalType": self._rng.choice(("timestamp-millis", "timestamp-micros")),
            },
            lambda: {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4},
        ]
        makers = makers if self._logical else makers[:7]
        makers += [
            lambda: {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]},
            lambda: {"type": "fixed", "name": self._name(), "size": 3},
        ]
        if depth < 3:
            makers += [
                lambda: {"type": "array", "items": self.schema(depth + 1)},
                lambda: {"type": "map", "values": self.schema(depth + 1)},
                lambda: self._optional(self.schema(depth + 1)),
                lambda: self.record(depth + 1),
            ] * 2
        return self._rng.choice(makers)()

    def record(self, depth: int = 0) -> dict[str, Any]:
        names = self._rng.sample(NAMES, self._rng.randint(1, len(NAMES)))
        fields = [{"name": name, "type": self.schema(depth)} for name in names]
        return {"type": "record", "name": self._name(), "fields": fields}

    def _optional(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return schema
        return self._rng.choice((["null", schema], [schema, "null"]))

    def _name(self) -> str:
        self._names += 1
        return f"N{self._names}"

    def value(self, schema: Any) -> Any:
        rng = self._rng
        if isinstance(schema, list):
            branch = rng.choice(schema)
            return None if branch == "null" else self.value(branch)
        kind = schema if isinstance(schema, str) else schema["type"]
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        match kind:
            case "int" if logical:
                return datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randint(-9_999, 9_999))
            case "long" if logical:
                step = 1_000 if logical == "timestamp-millis" else 1
                delta = datetime.timedelta(microseconds=rng.randint(-(10**12), 10**12) * step)
                return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + delta
            case "bytes" if logical:
                digits = rng.randint(1, 30)
                return decimal.Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(
                    -4, decimal.Context(prec=40)
                )
            case "int":
                return rng.choice((0, -1, 63, 64, 2**31 - 1, -(2**31), rng.randint(-999, 999)))
            case "long":
                return rng.choice((0, -1, 2**63 - 1, -(2**63), rng.randint(-(10**9), 10**9)))
            case "float":
                return float(rng.randint(-100, 100)) / 4
            case "double":
                return rng.uniform(-1e9, 1e9)
            case "boolean":
                return rng.random() < 0.5
            case "bytes":
                return rng.randbytes(rng.choice((0, 1, 5, 70)))
            case "string":
                return "gr\u00fc\u00dfe" * rng.choice((0, 1, 20))
            case "enum":
                return rng.choice(schema["symbols"])
            case "fixed":
                return rng.randbytes(schema["size"])
            case "array":
                return [self.value(schema["items"]) for _ in range(rng.choice((0, 1, 2, 9)))]
            case "map":
                return {f"k{number}": self.value(schema["values"]) for number in range(rng.choice((0, 1, 4)))}
            case _:
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}

    def reader(self, writer: dict[str, Any]) -> dict[str, Any]:
        """Fields dropped, moved, added and widened."""
        fields = [dict(field) for field in writer["fields"] if self._rng.random() < 0.8]
        wider = {"int": "long", "long": "double", "float": "double"}
        for field in fields:
            if isinstance(field["type"], str) and self._rng.random() < 0.5:
                field["type"] = wider.get(field["type"], field["type"])
            elif self._rng.random() < 0.2:
                field["type"] = self._optional(field["type"])
        fields.append({"name": "added", "type": ["null", "string"], "default": None})
        fields.append({"name": "more", "type": {"type": "array", "items": "int"}, "default": [1, 2]})
        self._rng.shuffle(fields)
        return {**writer, "fields": fields}


@pytest.mark.parametrize("seed", range(60))
def test_what_fastavro_writes_is_read_as_fastavro_reads_it(seed: int) -> None:
    world = World(SEED + seed)
    writer = world.record()
    reader = world.reader(writer)
    values = [world.value(writer) for _ in range(40)]
    data = written(writer, *values)
    for wanted in (writer, reader):
        expected = [
            fastavro.schemaless_reader(
                io.BytesIO(one), fastavro.parse_schema(writer), fastavro.parse_schema(wanted)
            )
            for one in data
        ]
        found, bad = columns(data, writer, wanted)
        assert not any(bad)
        assert found == [plain_of(wanted, one) for one in expected]


def plain_of(schema: Any, value: Any) -> Any:
    """fastavro's value as columns have it: an empty map is no list."""
    if isinstance(schema, list):
        return None if value is None else plain_of(next(one for one in schema if one != "null"), value)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "map":
        return {key: plain_of(schema["values"], one) for key, one in value.items()} or []
    if kind == "array":
        return [plain_of(schema["items"], one) for one in value]
    if kind == "record":
        return {field["name"]: plain_of(field["type"], value[field["name"]]) for field in schema["fields"]}
    return value


@pytest.mark.parametrize("seed", range(12))
def test_values_that_lie_are_bad_and_no_others(seed: int) -> None:
    """What the reader of single values refuses is bad here, and what it reads is not."""
    world = World(SEED + 1_000 + seed, logical=False)
    rng = random.Random(seed)
    writer = world.record()
    good = written(writer, *(world.value(writer) for _ in range(60)))
    spoiled = []
    for one in good * 4:
        data = bytearray(one[: rng.randint(0, len(one))])
        for _ in range(rng.randint(0, 3)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        spoiled.append(bytes(data))
    mixed = [one for pair in zip(good * 4, spoiled, strict=True) for one in pair]
    found, bad = columns(mixed, writer)
    single = AvroSchema(writer)
    for one, was_bad in zip(mixed, bad, strict=True):
        try:
            single.read(one)
        except ValueError as fault:
            assert was_bad, fault
        else:
            # The reader of single values does not mind an int of more than 32 bits.
            assert not was_bad or one not in good
    alone, _ = columns(good, writer)
    assert found[0::2] == alone * 4


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\x7f"),
        ({"type": "array", "items": "null"}, b"\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\x7f\x00"),
        ({"type": "map", "values": "null"}, b"\xfe\xff\xff\xff\x0f"),
        ("string", b"\xfe\xff\xff\xff\xff\x7f"),
        ("string", b"\x01"),
        ("string", b"\x02\xff"),
        ("bytes", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "fixed", "name": "F", "size": 1 << 40}, b"x"),
        ("long", b"\xff" * 11),
        ("long", b""),
        ("int", b"\x80\x80\x80\x80\x20"),
        (["null", "int"], b"\x04\x02"),
        (["null", "int"], b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x04\x03\xe8"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x22" + b"\x01" * 17),
        ("boolean", b"\x00\x00"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01"),
    ],
)
def test_a_bad_value_costs_little_and_spoils_no_other(schema: Any, data: bytes) -> None:
    tracemalloc.start()
    try:
        _, bad = columns([data, data], schema)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bad == [True, True] and peak_bytes < 8 << 20


@pytest.mark.parametrize(
    ("writer", "reader", "data", "value"),
    [
        ("int", "double", b"\x04", 2.0),
        ("string", "bytes", b"\x02x", b"x"),
        ("bytes", "string", b"\x02x", "x"),
        ("int", ["null", "long"], b"\x04", 2),
        (["int", "string"], "long", b"\x00\x04", 2),
        (["null", "int", "long"], ["null", "int", "long"], b"\x02\x04", 2),
        (["int", "string"], ["int", "string"], b"\x02\x02x", {"member0": None, "member1": "x"}),
        (["float", "double"], ["float", "double"], b"\x00\x00\x00\x80\x3f", 1.0),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "x.E", "symbols": ["A", "Z"], "default": "Z"},
            b"\x02",
            "Z",
        ),
        (
            {"type": "record", "name": "O", "fields": [{"name": "old", "type": "int"}]},
            {"type": "record", "name": "R", "fields": [{"name": "new", "type": "int", "aliases": ["old"]}]},
            b"\x02",
            {"new": 1},
        ),
        ({"type": "long", "logicalType": "nothing-known"}, "long", b"\x02", 1),
        ({"type": {"type": "int"}}, "int", b"\x02", 1),
    ],
)
def test_resolution(writer: Any, reader: Any, data: bytes, value: Any) -> None:
    assert columns([data], writer, reader) == ([value], [False])


def test_rows_of_a_branch_that_cannot_be_read_are_bad() -> None:
    found, bad = columns([b"\x00\x04", b"\x02\x02x", b"\x00\x06"], ["int", "string"], "int")
    assert bad == [False, True, False] and [found[0], found[2]] == [2, 3]


@pytest.mark.parametrize(
    ("writer", "reader", "words"),
    [
        ("string", "int", "string cannot be read as int"),
        (
            {"type": "record", "name": "R", "fields": []},
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
            "'a' was not written and has no default",
        ),
        ("int", ["string", "bytes"], "int cannot be read as any of union"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "another size",
        ),
        ({"type": "record"}, "int", "cannot be read"),
    ],
)
def test_schemas_that_do_not_fit(writer: Any, reader: Any, words: str) -> None:
    with pytest.raises(NoColumns, match=words):
        plan(Unchecked(writer), Unchecked(reader))


class Unchecked(AvroSchema):
    """A schema that was not looked at before it is used."""

    def __init__(self, schema: Any) -> None:
        super().__init__("int")
        self.schema = schema


def test_a_type_that_holds_itself_has_no_columns() -> None:
    linked = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    with pytest.raises(HoldsItself):
        plan(AvroSchema(linked), AvroSchema(linked))


def test_a_schema_of_unions_that_fails_at_its_bottom_fails_soon() -> None:
    sides: list[Any] = ["string", "int"]
    for level in range(15):
        record = {"type": "record", "name": f"R{level}"}
        sides = [["null", {**record, "fields": [{"name": "f", "type": side}]}] for side in sides]
    found, bad = columns([b"\x02" * 15 + b"\x02x", b"\x00"], *sides)
    assert bad == [True, False] and found[1] is None


def test_long_lists_beside_short_ones_and_nothing_at_all() -> None:
    schema = {"type": "array", "items": "long"}
    values = [[], list(range(500)), [1], [], [2, 3]]
    assert columns(written(schema, *values), schema) == (values, [False] * 5)
    assert columns([], schema) == ([], [])
    assert np.array(columns([b""], {"type": "record", "name": "R", "fields": []})[0]).tolist() == [{}]
