"""Protobuf to columns: against Google's library for random messages; and messages that lie."""

import datetime
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.unit.console.test_console_hostile_values import SCALARS
from tidelog.pipelines.avro_columns import HoldsItself, NoColumns
from tidelog.pipelines.packed_values import Cursor
from tidelog.pipelines.protobuf_columns import message_plan
from tidelog.schemas.protobuf_schema import parse
from tidelog.schemas.protobuf_writer import write_message

SEED = 20261119
DECIMALS = ("uint64", "fixed64")


def columns(text: str, data: list[bytes], index: int = 0) -> tuple[list[Any], list[bool]]:
    """What is read of messages, and which are bad."""
    schema = parse(text)
    wanted = message_plan(schema, schema.message_at([index]))
    cursor = Cursor.over(pa.array(data, pa.binary()))
    found = wanted.read(cursor)
    found.validate(full=True)
    assert found.type == wanted.type
    return found.to_pylist(), list(cursor.bad | (cursor.position != cursor.end))


def test_what_the_library_writes() -> None:
    """Every scalar alone, repeated (packed and not), in nested messages and as values of maps."""
    rng = random.Random(SEED)
    text = "message Row { Row2 row = 200; repeated Row2 rows = 201; map<int32, Row2> by_id = 202; %s }"
    text += "message Row2 { %s }"
    inner = ""
    file = descriptor_pb2.FileDescriptorProto(name="columns.proto", syntax="proto3")
    row, row2 = file.message_type.add(name="Row"), file.message_type.add(name="Row2")
    for number, kind in enumerate(SCALARS, start=1):
        inner += f" {kind} one_{kind} = {number}; repeated {kind} many_{kind} = {number + 50};"
        inner += f" repeated {kind} apart_{kind} = {number + 100};"
        code = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        for message in (row, row2):
            message.field.add(name=f"one_{kind}", number=number, type=code, label=1)
            message.field.add(name=f"many_{kind}", number=number + 50, type=code, label=3)
            apart = message.field.add(name=f"apart_{kind}", number=number + 100, type=code, label=3)
            if kind not in ("string", "bytes"):
                apart.options.packed = False
    row.field.add(name="row", number=200, type=11, type_name=".Row2", label=1)
    row.field.add(name="rows", number=201, type=11, type_name=".Row2", label=3)
    entry = row.nested_type.add(name="ByIdEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=5, label=1)
    entry.field.add(name="value", number=2, type=11, type_name=".Row2", label=1)
    row.field.add(name="by_id", number=202, type=11, type_name=".Row.ByIdEntry", label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    library = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))

    def some_message(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for kind, make in SCALARS.items():
            if rng.random() < 0.8:
                made[f"one_{kind}"] = make(rng) or 1
            for name in ("many", "apart"):
                made[f"{name}_{kind}"] = [make(rng) for _ in range(rng.choice((0, 1, 5)))]
        if depth == 0:
            made["rows"] = [some_message(1) for _ in range(rng.randrange(3))]
            made["by_id"] = {rng.randint(-5, 5): some_message(1) for _ in range(rng.randrange(3))}
            if rng.random() < 0.7:
                made["row"] = some_message(1)
        return made

    def as_columns(value: dict[str, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if depth == 0:
            made["row"] = as_columns(value["row"], 1) if "row" in value else None
            made["rows"] = [as_columns(one, 1) for one in value["rows"]]
            made["by_id"] = sorted((key, as_columns(one, 1)) for key, one in value["by_id"].items())
        for kind in SCALARS:
            for name in (f"one_{kind}", f"many_{kind}", f"apart_{kind}"):
                found = value.get(name)
                if kind in DECIMALS and found is not None:
                    found = (
                        [decimal.Decimal(one) for one in found]
                        if isinstance(found, list)
                        else decimal.Decimal(found)
                    )
                made[name] = found
        return made

    values = [some_message(0) for _ in range(40)]
    found, bad = columns(text % (inner, inner), [library(**value).SerializeToString() for value in values])
    assert not any(bad)
    for one in found:
        one["by_id"] = sorted(one["by_id"])
    assert found == [as_columns(value, 0) for value in values]


SHOP = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; State state = 2; google.protobuf.Timestamp at = 3;
  oneof paid { string card = 4; bool cash = 5; Item gift = 6; }
  repeated State history = 7; map<string, State> by = 8; map<string, string> notes = 9; bytes raw = 10;
  enum State { NEW = 0; PAID = 1; OLD = -2; }
}
message Item { string sku = 1; Order.State state = 2; }
message Empty {}
message Linked { Linked next = 1; }
message Lost { Gone gone = 1; }
"""


def order(value: dict[str, Any]) -> bytes:
    schema = parse(SHOP)
    return write_message(value, schema.message_at([0]), schema)


def test_times_enums_maps_and_what_is_not_written() -> None:
    data = [
        order(
            {
                "id": -7,
                "state": "PAID",
                "at": "2026-01-31T12:00:00.123456789Z",
                "gift": {"sku": "x", "state": "OLD"},
                "history": ["OLD", "NEW", 9],
                "by": {"a": "PAID", "b": "OLD"},
                "notes": {"k": "v"},
                "raw": "0x00ff",
            }
        ),
        b"",
    ]
    found, bad = columns(SHOP, data)
    assert bad == [False, False]
    assert found[0] == {
        "id": -7,
        "state": "PAID",
        "at": datetime.datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=datetime.UTC),
        "card": None,
        "cash": None,
        "gift": {"sku": "x", "state": "OLD"},
        "history": ["OLD", "NEW", "9"],
        "by": [("a", "PAID"), ("b", "OLD")],
        "notes": [("k", "v")],
        "raw": b"\x00\xff",
    }
    empty: dict[str, Any] = {**dict.fromkeys(found[0]), "history": [], "by": [], "notes": []}
    assert found[1] == empty
    assert columns(SHOP, [b"\x08\x01"], 2) == ([{}], [False])
    # A key and a value that are nothing are not written.
    (one,), bad = columns(SHOP, [b"\x4a\x00"])
    assert one["notes"] == [("", None)] and bad == [False]


def test_the_last_counts_and_what_nobody_wants_is_passed_over() -> None:
    unknown = b"\xa0\x06\x01" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa2\x06\x03abc"
    wrong_type = b"\x0a\x01x"
    (one,), bad = columns(SHOP, [b"\x08\x01" + unknown + b"\x22\x01c" + wrong_type + b"\x08\x02\x28\x01"])
    assert bad == [False]
    assert (one["id"], one["card"], one["cash"]) == (2, None, True)
    (one,), bad = columns(SHOP, [b"\x28\x01\x22\x01c"])
    assert (one["card"], one["cash"], bad) == ("c", None, [False])


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x08" + b"\xff" * 10,
        b"\x22\x05abc",
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x22\x01\xff",
        b"\x00\x01",
        b"\x0b",
        b"\x3a\x02\x01\x80",
        b"\x32\x02\x0a\x05",
        b"\x32\x00\x32\x00",
        b"\x1a\x02\x10\xff",
        b"\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_a_bad_message_spoils_no_other(data: bytes) -> None:
    good = order({"id": 5, "card": "c"})
    found, bad = columns(SHOP, [good, data, good])
    assert bad == [False, True, False]
    assert found[0] == found[2] and found[0]["card"] == "c"


def test_hostile_bytes_spoil_no_other() -> None:
    rng = random.Random(SEED)
    good = order(
        {"id": 5, "gift": {"sku": "x"}, "history": [1, 2], "by": {"a": 1}, "at": "2026-01-31T12:00:00Z"}
    )
    mixed = []
    for _ in range(2_000):
        data = bytearray(good[: rng.randint(0, len(good))])
        for _ in range(rng.randint(0, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        mixed += [good, bytes(data)]
    found, bad = columns(SHOP, mixed)
    alone, _ = columns(SHOP, [good])
    assert not any(bad[0::2]) and found[0::2] == alone * 2_000 and sum(bad[1::2]) > 300


@pytest.mark.parametrize(("index", "fault"), [(3, HoldsItself), (4, NoColumns)])
def test_messages_without_columns(index: int, fault: type[Exception]) -> None:
    schema = parse(SHOP)
    with pytest.raises(fault):
        message_plan(schema, schema.message_at([index]))
