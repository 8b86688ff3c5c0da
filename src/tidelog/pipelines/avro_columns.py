"""Avro values to typed Arrow columns, a field of all values at a time.

A `Plan` reads what was written with one schema as the schema of the columns has it, by Avro's rules of schema
resolution: fields by name or alias, defaults for those that were not written, promotions, unions, symbols of
enums. There is no Python object per value. Arrays and maps are read in rounds, an item of all values in each.

Types are those of Spark's from_avro: [null, T] is T, [int, long] a long, [float, double] a double, other
unions are a struct with a member for each branch. What holds itself cannot be columns. A value that does not
fit becomes bad in its cursor; `AvroSchema.read` says why.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipelines.packed_values import Cursor, Rows, in_row_order, joined, spread
from tidelog.pipelines.record_columns import Numbers
from tidelog.schemas.avro_reader import DEPTH_MAX, AvroSchema, full_name
from tidelog.schemas.avro_writer import default_bytes

#: items of an array that have no bytes of their own
EMPTY_ITEMS_MAX = 1_000
DECIMAL_DIGITS_MAX = 38
_DECIMAL_BYTES = 16
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_ARROW: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: types are known by the identity of their definition
_SIMPLE_SCHEMAS = {name: {"type": name} for name in _ARROW}
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1

Read = Callable[[Cursor], pa.Array]


class NoColumns(ValueError):
    """A schema that has no columns, or cannot be read as another one."""


class HoldsItself(ValueError):
    """A schema with a type inside itself, or too deep a one: it has no columns, whatever is read as what."""


class Kind(NamedTuple):
    """A type of a schema with its definition and the namespace of what it names."""

    schema: Any
    name: str
    space: str


class Plan(NamedTuple):
    """How values of a type are read, and what comes out."""

    type: pa.DataType
    read: Read


def plan(writer: AvroSchema, reader: AvroSchema) -> Plan:
    """The columns of `reader`, from values of `writer`; raises NoColumns."""
    try:
        return _Planner(writer, reader).resolved(writer.schema, "", reader.schema, "", 0)
    except (KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise NoColumns(f"the schema cannot be read: {fault!r}") from fault


class _Planner:
    """Plans of pairs of types, each made once: what is tried in a union is tried again further out."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer = writer
        self._reader = reader
        self._known: dict[tuple[int, str, int, str], Plan | NoColumns] = {}
        self._under_way: set[tuple[int, str, int, str]] = set()
        #: types of the writer, or of the columns, as they are
        self._writing = self if writer is reader else _Planner(writer, writer)
        self._reading = self if writer is reader else _Planner(reader, reader)

    def resolved(self, written: Any, written_space: str, read: Any, read_space: str, depth: int) -> Plan:
        """Raises NoColumns where a value of one can never be read as the other, HoldsItself."""
        pair = (id(written), written_space, id(read), read_space)
        known = self._known.get(pair)
        if known is None:
            if pair in self._under_way or depth > DEPTH_MAX:
                raise HoldsItself("a type that holds itself, or that is too deep, cannot be columns")
            self._under_way.add(pair)
            try:
                known = self._made(written, written_space, read, read_space, depth)
            except NoColumns as fault:
                known = fault
            self._under_way.discard(pair)
            self._known[pair] = known
        if isinstance(known, NoColumns):
            raise known
        return known

    def _made(self, written: Any, written_space: str, read: Any, read_space: str, depth: int) -> Plan:
        source = _kind(self._writer, written, written_space)
        target = _kind(self._reader, read, read_space)
        if source.name == "union":
            return self._from_union(source, target, depth)
        if target.name == "union":
            return self._to_union(source, target, depth)
        if source.name in ("record", "error") and target.name in ("record", "error"):
            return self._record(source, target, depth)
        if source.name != target.name:
            return _promoted(source, target)
        if source.name in ("enum", "fixed") and not _same_name(source, target):
            raise NoColumns(f"{_title(source)} cannot be read as {_title(target)}")
        if source.name == "enum":
            return _enum(source, target)
        if source.name == "fixed":
            if source.schema["size"] != target.schema["size"]:
                raise NoColumns(f"{_title(source)} has another size")
            size = int(source.schema["size"])
            return _logical(target, Plan(pa.binary(), lambda cursor: cursor.pieces(size)))
        if source.name == "array":
            item = self._inside(source, target, "items", depth)
            return _list(item, pa.list_(item.type))
        if source.name == "map":
            return _map(self._inside(source, target, "values", depth))
        return _logical(target, _simple(source.name))

    def own(self, schema: Any, space: str, depth: int) -> Plan:
        """A type as it is."""
        return self.resolved(schema, space, schema, space, depth)

    def _inside(self, source: Kind, target: Kind, part: str, depth: int) -> Plan:
        return self.resolved(source.schema[part], source.space, target.schema[part], target.space, depth + 1)

    def _record(self, source: Kind, target: Kind, depth: int) -> Plan:
        wanted = {str(field["name"]): field for field in target.schema["fields"]}
        aliases = {str(alias): name for name, field in wanted.items() for alias in field.get("aliases") or ()}
        steps: list[tuple[str, Plan]] = []
        for field in source.schema["fields"]:
            name = field["name"] if field["name"] in wanted else aliases.get(field["name"], "")
            if name:
                there = wanted[name]
                found = self.resolved(field["type"], source.space, there["type"], target.space, depth + 1)
            else:
                found = self._writing.own(field["type"], source.space, depth + 1)
            steps.append((name, found))
        read = {name for name, _ in steps}
        defaults = {
            name: self._default(field, target.space, depth)
            for name, field in wanted.items()
            if name not in read
        }
        types = {name: found.type for name, found in steps if name}
        types |= {name: default.type for name, default in defaults.items()}
        kind = pa.struct([pa.field(name, types[name]) for name in wanted])

        def read_record(cursor: Cursor) -> pa.Array:
            columns = {name: step.read(cursor) for name, step in steps}
            first = np.zeros(len(cursor), np.int32)
            columns |= {name: default.take(pa.array(first)) for name, default in defaults.items()}
            return _struct([columns[name] for name in wanted], kind, len(cursor))

        return Plan(kind, read_record)

    def _default(self, field: Mapping[str, Any], space: str, depth: int) -> pa.Array:
        """A default as an array of one: written as a value, and read as one."""
        if "default" not in field:
            raise NoColumns(f"the field {field['name']!r} was not written and has no default")
        data = default_bytes(self._reader, field["type"], space, field["default"])
        own = self._reading.own(field["type"], space, depth + 1)
        return own.read(Cursor.over(pa.array([data], pa.binary())))

    def _from_union(self, source: Kind, target: Kind, depth: int) -> Plan:
        branches: list[Plan | NoColumns] = []
        for branch in source.schema:
            try:
                branches.append(self.resolved(branch, source.space, target.schema, target.space, depth + 1))
            except NoColumns as fault:
                branches.append(fault)
        usable = [branch for branch in branches if isinstance(branch, Plan)]
        if not usable:
            raise next(branch for branch in branches if isinstance(branch, NoColumns))
        kind = next((branch.type for branch in usable if branch.type != pa.null()), pa.null())

        def read_union(cursor: Cursor) -> pa.Array:
            chosen = cursor.signed()
            cursor.spoil((chosen < 0) | (chosen >= len(branches)))
            found: list[pa.Array] = []
            places: list[Rows] = []
            for number, branch in enumerate(branches):
                rows = np.flatnonzero((chosen == number) & ~cursor.bad)
                if not len(rows):
                    continue
                if not isinstance(branch, Plan):
                    cursor.spoil(chosen == number)
                    continue
                if pa.types.is_null(branch.type):
                    # It has no bytes, and rows that nothing is found for are null.
                    continue
                if len(rows) == len(cursor):
                    return _cast(branch.read(cursor), kind)
                part = cursor.part(rows)
                found.append(_cast(branch.read(part), kind))
                places.append(rows)
                cursor.join(part, rows)
            if not found:
                return pa.nulls(len(cursor), kind)
            return spread(joined(found), np.concatenate(places), len(cursor))

        return Plan(kind, read_union)

    def _to_union(self, source: Kind, target: Kind, depth: int) -> Plan:
        kind = self._union_type(target, depth)
        members = [index for index, branch in enumerate(target.schema) if branch != "null"]
        for exact in (True, False):
            for index, branch in enumerate(target.schema):
                there = _kind(self._reader, branch, target.space)
                if exact and (there.name != source.name or not _same_name(source, there)):
                    continue
                try:
                    found = self.resolved(source.schema, source.space, branch, target.space, depth + 1)
                except NoColumns:
                    continue
                if index not in members or len(members) == 1 or not _has_members(kind):
                    return Plan(kind, _as_type(found, kind))
                return Plan(kind, _member(found, kind, members.index(index)))
        raise NoColumns(f"{_title(source)} cannot be read as any of {_title(target)}")

    def _union_type(self, union: Kind, depth: int) -> pa.DataType:
        """What a union of the columns' schema is."""
        kinds = [(branch, _kind(self._reader, branch, union.space)) for branch in union.schema]
        members = [(branch, kind) for branch, kind in kinds if kind.name != "null"]
        types = [self._reading.own(branch, union.space, depth + 1).type for branch, _ in members]
        names = {kind.name for _, kind in members}
        if len(types) < 2:
            return types[0] if types else pa.null()
        if names == {"int", "long"}:
            return pa.int64()
        if names == {"float", "double"}:
            return pa.float64()
        return pa.struct([pa.field(f"member{number}", kind) for number, kind in enumerate(types)])


def _has_members(kind: pa.DataType) -> bool:
    """Whether a union of several types is a struct, and not a wider number."""
    return bool(pa.types.is_struct(kind))


def _as_type(found: Plan, kind: pa.DataType) -> Read:
    return lambda cursor: _cast(found.read(cursor), kind)


def _member(found: Plan, kind: pa.DataType, number: int) -> Read:
    def read(cursor: Cursor) -> pa.Array:
        columns = [
            found.read(cursor) if index == number else pa.nulls(len(cursor), kind.field(index).type)
            for index in range(kind.num_fields)
        ]
        return _struct(columns, kind, len(cursor))

    return read


def _kind(schema: AvroSchema, given: Any, space: str) -> Kind:
    """What a type is, whether it is named, written out or wrapped."""
    if isinstance(given, list):
        return Kind(given, "union", space)
    if isinstance(given, str):
        if given in _ARROW:
            return Kind(_SIMPLE_SCHEMAS[given], given, space)
        return _kind(schema, *schema.named(given, space))
    name = given["type"]
    if not isinstance(name, str) or (
        name not in _ARROW and name not in ("record", "error", "enum", "fixed", "array", "map")
    ):
        return _kind(schema, name, space)
    if name in ("record", "error", "enum", "fixed"):
        return Kind(given, name, full_name(given, space)[1])
    return Kind(given, name, space)


def _same_name(source: Kind, target: Kind) -> bool:
    """Named types are the same by their last name, or by an alias, as in the Java library."""
    if "name" not in source.schema or "name" not in target.schema:
        return True
    short = [str(name).rpartition(".")[2] for name in (source.schema["name"], target.schema["name"])]
    aliases = [str(alias).rpartition(".")[2] for alias in target.schema.get("aliases") or ()]
    return short[0] == short[1] or short[0] in aliases


def _title(kind: Kind) -> str:
    return str(kind.schema.get("name", kind.name)) if isinstance(kind.schema, dict) else kind.name


def _struct(columns: list[pa.Array], kind: pa.DataType, count: int) -> pa.Array:
    if not columns:
        return pa.array([{}] * count, kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _cast(found: pa.Array, kind: pa.DataType) -> pa.Array:
    return found if found.type == kind else found.cast(kind)


def _whole(cursor: Cursor) -> pa.Array:
    found = cursor.signed()
    cursor.spoil((found < _INT_MIN) | (found > _INT_MAX))
    return pa.array(found.astype(np.int32))


def _simple(name: str) -> Plan:
    read: Read
    match name:
        case "null":
            read = lambda cursor: pa.nulls(len(cursor))  # noqa: E731
        case "boolean":
            read = lambda cursor: pa.array(cursor.fixed("u1") != 0)  # noqa: E731
        case "int":
            read = _whole
        case "long":
            read = lambda cursor: pa.array(cursor.signed())  # noqa: E731
        case "float" | "double":
            layout = "<f4" if name == "float" else "<f8"
            read = lambda cursor: pa.array(cursor.fixed(layout))  # noqa: E731
        case "bytes":
            read = lambda cursor: cursor.pieces(cursor.signed())  # noqa: E731
        case _:
            read = lambda cursor: cursor.texts(cursor.signed())  # noqa: E731
    return Plan(_ARROW[name], read)


def _promoted(source: Kind, target: Kind) -> Plan:
    if target.name not in _PROMOTIONS.get(source.name, ()):
        raise NoColumns(f"{_title(source)} cannot be read as {_title(target)}")
    if target.name == "string":
        return _simple("string")
    found = _simple(source.name)
    kind = _ARROW[target.name]
    # A large long loses its last digits in a floating number, as everywhere.
    return _logical(target, Plan(kind, lambda cursor: found.read(cursor).cast(kind, safe=False)))


def _enum(source: Kind, target: Kind) -> Plan:
    known = set(target.schema["symbols"])
    fallback = target.schema.get("default")
    symbols = [symbol if symbol in known else fallback for symbol in source.schema["symbols"]]
    names = pa.array([symbol or "" for symbol in symbols], pa.string())
    unknown = np.array([symbol is None for symbol in symbols])

    def read(cursor: Cursor) -> pa.Array:
        chosen = cursor.signed()
        cursor.spoil((chosen < 0) | (chosen >= len(symbols)))
        chosen = np.where(cursor.bad, 0, chosen)
        cursor.spoil(unknown[chosen])
        return names.take(pa.array(chosen))

    return Plan(pa.string(), read)


def _list(item: Plan, kind: pa.DataType) -> Plan:
    def read(cursor: Cursor) -> pa.Array:
        items, bounds = _items(cursor, item)
        return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), items)

    return Plan(kind, read)


def _map(value: Plan) -> Plan:
    key = _simple("string")
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", value.type)])

    def read_entry(cursor: Cursor) -> pa.Array:
        return _struct([key.read(cursor), value.read(cursor)], entry, len(cursor))

    def read(cursor: Cursor) -> pa.Array:
        items, bounds = _items(cursor, Plan(entry, read_entry))
        return pa.MapArray.from_arrays(pa.array(bounds.astype(np.int32)), items.field(0), items.field(1))

    return Plan(pa.map_(pa.string(), value.type), read)


def _items(cursor: Cursor, item: Plan) -> tuple[pa.Array, Rows]:
    """The items of arrays or maps, which come in blocks, each after its count."""
    found: list[pa.Array] = []
    rows: list[Rows] = []
    open_rows = np.arange(len(cursor))
    empty = np.zeros(len(cursor), np.int64)
    while len(open_rows):
        head = cursor.part(open_rows)
        counts = _block_counts(head)
        cursor.join(head, open_rows)
        open_rows, counts = open_rows[counts > 0], counts[counts > 0]
        left, places = counts.copy(), open_rows
        while len(places):
            part = cursor.part(places)
            before = part.position.copy()
            found.append(item.read(part))
            rows.append(places)
            # A count can claim much where its items have no bytes.
            empty[places] += part.position == before
            part.spoil(empty[places] > EMPTY_ITEMS_MAX)
            cursor.join(part, places)
            left = left - 1
            going = (left > 0) & ~part.bad
            left, places = left[going], places[going]
        open_rows = open_rows[~cursor.bad[open_rows]]
    return in_row_order(found, rows, len(cursor), item.type)


def _block_counts(head: Cursor) -> Numbers:
    """How many items the next block of each value has; a negative count is followed by a size in bytes."""
    counts = head.signed()
    sized = np.flatnonzero(counts < 0)
    if len(sized):
        part = head.part(sized)
        part.signed()
        head.join(part, sized)
        counts[sized] = -counts[sized]
        # The lowest number has no opposite.
        head.spoil(counts < 0)
    counts[head.bad] = 0
    return counts


def _logical(target: Kind, found: Plan) -> Plan:
    """A type with what the logical type of the columns' schema makes of it."""
    under, schema = target.name, target.schema
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    kind: pa.DataType | None = None
    if logical == "date" and under == "int":
        kind = pa.date32()
    elif under == "long" and logical in ("timestamp-millis", "timestamp-micros"):
        kind = pa.timestamp("us", tz="UTC")
    elif under == "long" and logical in ("local-timestamp-millis", "local-timestamp-micros"):
        kind = pa.timestamp("us")
    elif logical == "decimal" and under in ("bytes", "fixed"):
        return _decimal(schema, found)
    if kind is None:
        return found
    factor = 1_000 if logical and logical.endswith("millis") else 1

    def read(cursor: Cursor) -> pa.Array:
        plain = found.read(cursor)
        if factor != 1:
            numbers = plain.to_numpy()
            cursor.spoil((numbers > _LONG_MAX // factor) | (numbers < -_LONG_MAX // factor))
            plain = pa.array(np.where(cursor.bad, 0, numbers) * factor)
        return plain.cast(kind)

    return Plan(kind, read)


def _decimal(schema: Mapping[str, Any], found: Plan) -> Plan:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
        return found
    if not 1 <= precision <= DECIMAL_DIGITS_MAX:
        raise NoColumns(f"a decimal has at most {DECIMAL_DIGITS_MAX} digits")
    kind = pa.decimal128(precision, scale)

    def read(cursor: Cursor) -> pa.Array:
        return _decimals(cursor, found.read(cursor), kind)

    return Plan(kind, read)


def _decimals(cursor: Cursor, pieces: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers of big-endian bytes, of any length up to 16, as Arrow has them: little-endian, of 16 bytes."""
    count = len(pieces)
    bounds = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + count + 1]
    sizes = np.diff(bounds.astype(np.int64))
    cursor.spoil((sizes > _DECIMAL_BYTES) | ((sizes == 0) & ~cursor.bad))
    stored = pieces.buffers()[2]
    data = np.zeros(1, np.uint8) if stored is None or stored.size == 0 else np.frombuffer(stored, np.uint8)
    last = np.maximum(bounds[1:].astype(np.int64) - 1, 0)
    first = np.minimum(bounds[:-1].astype(np.int64), len(data) - 1)
    sign = np.where((data[first] & 0x80) != 0, 0xFF, 0).astype(np.uint8)
    sign[cursor.bad | (sizes == 0)] = 0
    made = np.repeat(sign[:, None], _DECIMAL_BYTES, axis=1)
    for place in range(min(_DECIMAL_BYTES, int(sizes.max(initial=0)))):
        rows = np.flatnonzero((sizes > place) & ~cursor.bad)
        made[rows, place] = data[last[rows] - place]
    made = np.ascontiguousarray(made)
    numbers = pa.Array.from_buffers(
        pa.decimal128(DECIMAL_DIGITS_MAX, kind.scale), count, [None, pa.py_buffer(made)]
    )
    limit = 10**kind.precision
    high = made.view("<i8")[:, 1].astype(np.float64) * 2.0**64 + made.view("<u8")[:, 0].astype(np.float64)
    large = np.abs(high) >= limit
    if large.any():
        cursor.spoil(large)
        numbers = pc.if_else(pa.array(large), pa.scalar(None, numbers.type), numbers)
    return numbers.cast(kind)
