"""Protobuf messages to typed Arrow columns, a field of all messages at a time.

Messages are read in rounds: the next field of each of them, by its tag. What was written is read with the
message of the columns' schema, by field numbers, as every parser does it: fields that it does not have are
passed over, those that were not written are null, the last of several counts, and so does the last of a
oneof. A singular message that comes in several pieces, which no serializer writes, is bad.

Types are those of Spark's from_protobuf: enums are strings, google.protobuf.Timestamp is a timestamp. Those
of unsigned numbers hold all of them (long for 32 bits, decimal(20,0) for 64). What holds itself cannot be
columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.pipelines.avro_columns import HoldsItself, NoColumns, Read
from tidelog.pipelines.packed_values import Cursor, Rows, spread
from tidelog.pipelines.record_columns import Numbers
from tidelog.schemas.protobuf_reader import (
    DEPTH_MAX,
    FIRST_SECOND,
    LAST_SECOND,
    TIMESTAMP,
    VALUES_MAX,
)
from tidelog.schemas.protobuf_schema import ProtoField, ProtoFile, ProtoMessage

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NANOS_MAX = 999_999_999
Bits = npt.NDArray[np.uint64]


class Scalar(NamedTuple):
    """A number on the wire: how wide it is there, and what it is as a column."""

    wire_type: int
    type: pa.DataType
    made: Callable[[Bits], pa.Array]


def _signed(bits: Bits) -> Numbers:
    return bits.view(np.int64)


def _zigzag(bits: Bits) -> Numbers:
    return _signed(bits >> np.uint64(1)) ^ -_signed(bits & np.uint64(1))


def _of(kind: str) -> Callable[[Bits], pa.Array]:
    """The lowest bytes of each number as another type."""
    count = 8 // np.dtype(kind).itemsize

    def made(bits: Bits) -> pa.Array:
        return pa.array(np.ascontiguousarray(bits.view(kind)[::count]))

    return made


def _unsigned(bits: Bits) -> pa.Array:
    return pa.array(bits).cast(pa.decimal128(20, 0))


_SCALARS: Mapping[str, Scalar] = {
    "int32": Scalar(_VARINT, pa.int32(), _of("<i4")),
    "int64": Scalar(_VARINT, pa.int64(), _of("<i8")),
    "uint32": Scalar(_VARINT, pa.int64(), lambda bits: pa.array(_signed(bits & np.uint64(0xFFFF_FFFF)))),
    "uint64": Scalar(_VARINT, pa.decimal128(20, 0), _unsigned),
    "sint32": Scalar(
        _VARINT, pa.int32(), lambda bits: pa.array(_zigzag(bits & np.uint64(0xFFFF_FFFF)).astype(np.int32))
    ),
    "sint64": Scalar(_VARINT, pa.int64(), lambda bits: pa.array(_zigzag(bits))),
    "bool": Scalar(_VARINT, pa.bool_(), lambda bits: pa.array(bits != 0)),
    "fixed32": Scalar(_FIXED32, pa.int64(), lambda bits: pa.array(_signed(bits))),
    "sfixed32": Scalar(_FIXED32, pa.int32(), _of("<i4")),
    "float": Scalar(_FIXED32, pa.float32(), _of("<f4")),
    "fixed64": Scalar(_FIXED64, pa.decimal128(20, 0), _unsigned),
    "sfixed64": Scalar(_FIXED64, pa.int64(), _of("<i8")),
    "double": Scalar(_FIXED64, pa.float64(), _of("<f8")),
}


class MessagePlan(NamedTuple):
    """How messages are read, and what comes out."""

    type: pa.DataType
    read: Read


def message_plan(schema: ProtoFile, message: ProtoMessage) -> MessagePlan:
    """The columns of a message; raises NoColumns, HoldsItself."""
    return _planned(schema, message, ())


class _Planned(NamedTuple):
    """A field: its wire type, the type of one value, and what makes values of where they are."""

    field: ProtoField
    wire_type: int
    type: pa.DataType
    #: of numbers
    made: Callable[[Bits], pa.Array] | None
    #: of what has a length
    read: Read | None

    @property
    def column_type(self) -> pa.DataType:
        if self.field.map_value:
            return pa.map_(self.type.field(0).type, self.type.field(1).type)
        return pa.list_(self.type) if self.field.repeated else self.type


def _planned(schema: ProtoFile, message: ProtoMessage, inside: tuple[str, ...]) -> MessagePlan:
    if message.name in inside or len(inside) > DEPTH_MAX:
        raise HoldsItself("a type that holds itself, or that is too deep, cannot be columns")
    fields = {
        number: _planned_field(schema, one, message.name, (*inside, message.name))
        for number, one in message.fields.items()
    }
    kind = pa.struct([pa.field(one.field.name, one.column_type) for one in fields.values()])

    def read(cursor: Cursor) -> pa.Array:
        found = _gathered(cursor, fields)
        columns = [_column(cursor, one, found[number]) for number, one in fields.items()]
        if not columns:
            return pa.array([{}] * len(cursor), kind)
        return pa.StructArray.from_arrays(columns, fields=list(kind))

    if message.name == TIMESTAMP:
        return MessagePlan(pa.timestamp("us", tz="UTC"), _timestamps(read))
    return MessagePlan(kind, read)


def _planned_field(schema: ProtoFile, one: ProtoField, scope: str, inside: tuple[str, ...]) -> _Planned:
    if one.map_value:
        entry = ProtoMessage(
            f"{scope}.{one.name}-entry",
            {1: ProtoField("key", 1, one.type), 2: ProtoField("value", 2, one.map_value)},
        )
        value = schema.resolve(one.map_value, scope)
        if isinstance(value, ProtoMessage):
            entry.fields[2] = ProtoField("value", 2, f".{value.name}")
        elif value is not None and one.map_value not in _SCALARS:
            entry.fields[2] = ProtoField("value", 2, _full_name(schema, value))
        found = _planned(schema, entry, inside)
        return _Planned(one, _BYTES, found.type, None, found.read)
    if one.type in _SCALARS:
        scalar = _SCALARS[one.type]
        return _Planned(one, scalar.wire_type, scalar.type, scalar.made, None)
    if one.type in ("string", "bytes"):
        text = one.type == "string"
        return _Planned(one, _BYTES, pa.string() if text else pa.binary(), None, _texts if text else _bytes)
    meaning = schema.resolve(one.type, scope)
    if isinstance(meaning, ProtoMessage):
        inner = _planned(schema, meaning, inside)
        return _Planned(one, _BYTES, inner.type, None, inner.read)
    if meaning is None:
        raise NoColumns(f"the schema names the type {one.type[:80]!r} and does not define it")
    return _Planned(one, _VARINT, pa.string(), _enum(meaning), None)


def _full_name(schema: ProtoFile, values: Mapping[int, str]) -> str:
    return "." + next(name for name, one in schema.all_enums.items() if one is values)


def _texts(cursor: Cursor) -> pa.Array:
    return cursor.texts(cursor.end - cursor.position)


def _bytes(cursor: Cursor) -> pa.Array:
    return cursor.pieces(cursor.end - cursor.position)


def _enum(names: Mapping[int, str]) -> Callable[[Bits], pa.Array]:
    def made(bits: Bits) -> pa.Array:
        numbers = _signed(bits).astype(np.int32)
        distinct, places = np.unique(numbers, return_inverse=True)
        words = [names.get(number, str(number)) for number in distinct.tolist()]
        return pa.array(words, pa.string()).take(pa.array(places))

    return made


def _timestamps(read: Read) -> Read:
    def read_moments(cursor: Cursor) -> pa.Array:
        parts = read(cursor)
        seconds, nanos = (
            parts.field(name).fill_null(0).to_numpy().astype(np.int64) for name in ("seconds", "nanos")
        )
        wrong = (seconds < FIRST_SECOND) | (seconds > LAST_SECOND) | (nanos < 0) | (nanos > _NANOS_MAX)
        cursor.spoil(wrong)
        moments = np.where(wrong, 0, seconds * 1_000_000 + nanos // 1_000)
        return pa.array(moments).cast(pa.timestamp("us", tz="UTC"))

    return read_moments


@dataclass
class _Found:
    """Where the values of one field are: rows, and either bits or starts and ends."""

    rows: list[Rows] = field(default_factory=list)
    bits: list[Bits] = field(default_factory=list)
    starts: list[Numbers] = field(default_factory=list)
    ends: list[Numbers] = field(default_factory=list)


def _gathered(cursor: Cursor, fields: Mapping[int, _Planned]) -> dict[int, _Found]:
    """All fields of all messages, in the order in which they were written."""
    found = {number: _Found() for number in fields}
    rounds = 0
    rows = np.flatnonzero((cursor.position < cursor.end) & ~cursor.bad)
    while len(rows):
        part = cursor.part(rows)
        tags = part.numbers()
        rounds += 1
        if rounds > VALUES_MAX:
            part.spoil(np.ones(len(part), np.bool_))
        for tag in np.unique(tags[~part.bad]).tolist():
            which = np.flatnonzero((tags == tag) & ~part.bad)
            one = part.part(which)
            _take(one, rows[which], tag, fields, found)
            part.join(one, which)
        cursor.join(part, rows)
        rows = rows[(part.position < part.end) & ~part.bad]
    return found


def _take(
    one: Cursor, rows: Rows, tag: int, fields: Mapping[int, _Planned], found: Mapping[int, _Found]
) -> None:
    """The next field of some messages, which is the same for all of them."""
    number, wire_type = tag >> 3, tag & 7
    planned = fields.get(number)
    if number == 0 or wire_type not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
        one.spoil(np.ones(len(one), np.bool_))
    elif wire_type == _BYTES:
        starts, ends = _lengths(one)
        if planned is None:
            return
        if planned.wire_type == _BYTES:
            good = ~one.bad
            _note_oneof(planned, rows[good], fields, found)
            into = found[number]
            into.rows.append(rows[good])
            into.starts.append(starts[good])
            into.ends.append(ends[good])
        elif planned.field.repeated:
            _unpack(one, rows, starts, ends, planned, found[number])
    else:
        bits = _bits(one, wire_type)
        if planned is not None and planned.wire_type == wire_type:
            good = ~one.bad
            _note_oneof(planned, rows[good], fields, found)
            found[number].rows.append(rows[good])
            found[number].bits.append(bits[good])


def _lengths(one: Cursor) -> tuple[Numbers, Numbers]:
    sizes = one.numbers()
    one.spoil(sizes > np.uint64(len(one.data)))
    starts = one.advance(np.where(one.bad, 0, sizes.view(np.int64)))
    return starts, one.position


def _bits(one: Cursor, wire_type: int) -> Bits:
    if wire_type == _VARINT:
        return one.numbers()
    return one.fixed("<u8" if wire_type == _FIXED64 else "<u4").astype(np.uint64)


def _unpack(one: Cursor, rows: Rows, starts: Numbers, ends: Numbers, planned: _Planned, into: _Found) -> None:
    """Numbers that stand behind one another in one piece."""
    places = np.flatnonzero(~one.bad & (starts < ends))
    inner = Cursor(one.data, one.buffer, starts.copy(), ends, one.bad.copy())
    while len(places):
        part = inner.part(places)
        bits = _bits(part, planned.wire_type)
        good = ~part.bad
        into.rows.append(rows[places[good]])
        into.bits.append(bits[good])
        inner.join(part, places)
        places = places[(part.position < part.end) & good]
    one.spoil(inner.bad)


def _note_oneof(
    planned: _Planned, rows: Rows, fields: Mapping[int, _Planned], found: Mapping[int, _Found]
) -> None:
    """Of a oneof the last one counts: what was found of the others is forgotten."""
    if not planned.field.oneof:
        return
    for number, other in fields.items():
        if other.field.oneof != planned.field.oneof or other is planned:
            continue
        one = found[number]
        for index, before in enumerate(one.rows):
            kept = ~np.isin(before, rows)
            if kept.all():
                continue
            one.rows[index] = before[kept]
            if one.bits:
                one.bits[index] = one.bits[index][kept]
            else:
                one.starts[index], one.ends[index] = one.starts[index][kept], one.ends[index][kept]


def _column(cursor: Cursor, planned: _Planned, found: _Found) -> pa.Array:
    if not found.rows:
        return (
            pa.nulls(len(cursor), planned.column_type)
            if not planned.field.repeated
            else _lists(planned, pa.array([], planned.type), np.zeros(len(cursor) + 1, np.int64))
        )
    rows = np.concatenate(found.rows)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    if not planned.field.repeated:
        last = np.ones(len(rows), np.bool_)
        last[:-1] = rows[1:] != rows[:-1]
        if (
            planned.read is not None
            and not pa.types.is_string(planned.type)
            and not pa.types.is_binary(planned.type)
        ):
            pieces = np.zeros(len(cursor), np.bool_)
            pieces[rows[~last]] = True
            cursor.spoil(pieces)
        rows, order = rows[last], order[last]
    values = _values(cursor, planned, found, rows, order)
    if not planned.field.repeated:
        return values if len(rows) == len(cursor) else spread(values, rows, len(cursor))
    bounds = np.zeros(len(cursor) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(cursor)), out=bounds[1:])
    return _lists(planned, values, bounds)


def _values(cursor: Cursor, planned: _Planned, found: _Found, rows: Rows, order: Rows) -> pa.Array:
    """The values at these places, in the order of their rows."""
    if planned.made is not None:
        return planned.made(np.concatenate(found.bits)[order])
    assert planned.read is not None
    starts, ends = np.concatenate(found.starts)[order], np.concatenate(found.ends)[order]
    inner = Cursor(cursor.data, cursor.buffer, starts, ends, np.zeros(len(rows), np.bool_))
    values = planned.read(inner)
    broken = np.zeros(len(cursor), np.bool_)
    broken[rows[inner.bad]] = True
    cursor.spoil(broken)
    return values


def _lists(planned: _Planned, values: pa.Array, bounds: Numbers) -> pa.Array:
    offsets = pa.array(bounds.astype(np.int32))
    if not planned.field.map_value:
        return pa.ListArray.from_arrays(offsets, values)
    # A key that is not written is that of its type: nothing, or 0.
    keys = values.field(0)
    if keys.null_count:
        kind = keys.type
        keys = keys.fill_null(pa.scalar("" if pa.types.is_string(kind) else 0).cast(kind))
    return pa.MapArray.from_arrays(offsets, keys, values.field(1))
