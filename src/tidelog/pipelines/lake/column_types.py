"""The columns of a table as Arrow types: what a table can hold, how it grows, and values made to fit.

A table grows and never shrinks: columns and members of structs are added, int becomes long, float becomes
double, a decimal gets more digits. That is what Iceberg allows, and what every reader of old files can read.
"""

import numpy as np
import pyarrow as pa

DECIMAL_DIGITS_MAX = 38


class DoNotMerge(ValueError):
    """Two types that no column can have both of; the text says where and what."""


def plain(kind: pa.DataType) -> pa.DataType:
    """A type as it is here: small offsets, and nothing in it that can only be null."""
    if pa.types.is_struct(kind):
        fields = [pa.field(one.name, plain(one.type)) for one in kind]
        fields = [one for one in fields if not is_empty(one.type)]
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def is_empty(kind: pa.DataType) -> bool:
    """Whether a type holds nothing that Iceberg could keep: nulls, structs without members, lists of such."""
    if pa.types.is_struct(kind):
        return int(kind.num_fields) == 0
    if pa.types.is_map(kind):
        return is_empty(kind.item_type)
    if pa.types.is_list(kind):
        return is_empty(kind.value_type)
    empty: bool = pa.types.is_null(kind)
    return empty


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a schema that hold something."""
    fields = [pa.field(one.name, plain(one.type)) for one in schema]
    return pa.schema([one for one in fields if not is_empty(one.type)])


def merged_schema(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The columns that hold both, those of the table first; raises DoNotMerge."""
    return pa.schema(list(_merged_fields(list(table), list(rows), "")))


def merged(table: pa.DataType, rows: pa.DataType, place: str) -> pa.DataType:
    """The type that holds values of both; raises DoNotMerge."""
    if table == rows:
        return table
    if pa.types.is_struct(table) and pa.types.is_struct(rows):
        return pa.struct(_merged_fields(list(table), list(rows), f"{place}."))
    if pa.types.is_list(table) and pa.types.is_list(rows):
        return pa.list_(merged(table.value_type, rows.value_type, f"{place}[]"))
    if pa.types.is_map(table) and pa.types.is_map(rows) and table.key_type == rows.key_type:
        return pa.map_(table.key_type, merged(table.item_type, rows.item_type, f"{place}{{}}"))
    if pa.types.is_decimal(table) and pa.types.is_decimal(rows) and table.scale == rows.scale:
        return max(table, rows, key=lambda kind: int(kind.precision))
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {table, rows} == {narrow, wide}:
            return wide
    raise DoNotMerge(f"{place} is {table} in the table and {rows} in the record")


def _merged_fields(table: list[pa.Field], rows: list[pa.Field], place: str) -> list[pa.Field]:
    theirs = {one.name: one.type for one in rows}
    found = [
        pa.field(one.name, merged(one.type, theirs.pop(one.name, one.type), f"{place}{one.name}"))
        for one in table
    ]
    return found + [pa.field(name, kind) for name, kind in theirs.items()]


def conformed_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with all the columns of a table, null where they have none."""
    columns = [
        pa.chunked_array(
            [conformed(chunk, one.type) for chunk in rows.column(one.name).chunks], type=one.type
        )
        if one.name in rows.column_names
        else pa.nulls(len(rows), one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def conformed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as a type that is `merged` of theirs and others."""
    if values.type == kind:
        return values
    if values.offset:
        values = values.take(pa.array(np.arange(len(values))))
    missing = values.is_null() if values.null_count else None
    if pa.types.is_struct(kind):
        members = {one.name: member for one, member in zip(values.type, values.flatten(), strict=True)}
        arrays = [
            conformed(members[one.name], one.type) if one.name in members else pa.nulls(len(values), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=missing)
    if pa.types.is_list(kind):
        items = conformed(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=missing)
    if pa.types.is_map(kind):
        items = conformed(values.items, kind.item_type)
        keys = conformed(values.keys, kind.key_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=missing)
    return values.cast(kind)
