"""The column `value` of a topic decoded with the schemas of a registry: typed, evolved, in bulk.

Every record is read with the schema that its id names, and comes out as the reader's schema has it, which is
chosen once for a query (`chosen_schema`), in the driver. What is the same for many batches (schemas, plans)
is kept in the Python worker, which serves many tasks.

A record that cannot be decoded fails the query, with its place and the reason (failfast), or has no value,
and its bytes and the reason in columns of their own (permissive). The words are those of Spark's from_avro.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.client.faults import BadOption
from tidelog.client.masking import masked_text
from tidelog.pipelines.decode_options import DecodeOptions
from tidelog.pipelines.framed_values import FramedValues, format_of
from tidelog.pipelines.packed_values import joined, spread
from tidelog.schemas.registered import LATEST, RegisteredSchema, RegisteredSchemas
from tidelog.schemas.registry_client import RegistryClient, RegistryFault, RegistryUnreachable

BYTES_COLUMN, FAULT_COLUMN = "valueBytes", "valueFault"
TIMEOUT_SECONDS = 30.0


class Undecodable(Exception):
    """A record that cannot be decoded, where none may be."""


class Decoding(NamedTuple):
    """How the values of a query are decoded: what was asked for, and the schema of the columns."""

    options: DecodeOptions
    schema: RegisteredSchema


def chosen_schema(options: DecodeOptions, schema_id: int | None = None) -> Decoding:
    """The schema of the columns: of an id that was chosen before, or as the options say. Raises BadOption."""
    schemas = registered_schemas(options.registry_url, options.user_info)
    registry = f"the registry at {masked_text(options.registry_url)}"
    which = options.which if schema_id is None else f"id:{schema_id}"
    kind, _, number = which.rpartition(":")
    try:
        if kind == "id" and number.isdigit():
            found = schemas.by_id(int(number))
        elif which == LATEST or which.isdigit():
            found = schemas.version(options.subject, which)
        else:
            raise BadOption(f"decode.schema is latest, the number of a version, or id:7, not {which!r}")
    except RegistryFault as fault:
        raise BadOption(
            f"{registry} refuses schema {which} of {options.subject}: {fault.message} ({fault.code})"
        ) from fault
    except (RegistryUnreachable, ValueError) as fault:
        raise BadOption(f"{registry}: {fault}") from fault
    if found.kind != options.kind:
        raise BadOption(f"decode is {options.kind}, and schema {found.id} is {found.kind}")
    return Decoding(options, found)


@lru_cache(maxsize=8)
def registered_schemas(url: str, user_info: str) -> RegisteredSchemas:
    """The schemas of a registry, kept in this process. Raises BadOption."""
    try:
        return RegisteredSchemas(RegistryClient(url, user_info, TIMEOUT_SECONDS))
    except ValueError as fault:
        raise BadOption(f"schema.registry.url: {fault}") from fault


@lru_cache(maxsize=8)
def decoder_of(decoding: Decoding) -> "ValueDecoder":
    """The decoder of this process for such values."""
    return ValueDecoder(decoding)


class ValueDecoder:
    """Decodes values of any writer's schema to the columns of one schema; raises BadOption if it has none."""

    def __init__(self, decoding: Decoding) -> None:
        options, schema = decoding
        self._permissive = options.permissive
        try:
            self._format = format_of(schema, options.message)
        except ValueError as fault:
            raise BadOption(f"schema {schema.id} cannot be columns: {fault}") from fault
        schemas = registered_schemas(options.registry_url, options.user_info)
        self._framed = FramedValues(schemas, self._format.columns)
        self.type = self._format.type

    def __repr__(self) -> str:
        return f"<ValueDecoder {self._format!r} {self._framed!r}>"

    def decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the source with typed values; raises Undecodable where none may be bad."""
        place = batch.schema.get_field_index("value")
        values = batch.column(place)
        found, faults = self._values(values)
        if faults and not self._permissive:
            row = min(faults)
            where = f"{batch.column('topic')[row]}-{batch.column('partition')[row]}"
            raise Undecodable(f"{where}, offset {batch.column('offset')[row]}: {faults[row]}")
        columns = list(batch.columns)
        fields = list(batch.schema)
        columns[place], fields[place] = found, pa.field("value", self.type)
        if self._permissive:
            told = np.array(sorted(faults), np.int64)
            reasons = pa.array([faults[row] for row in sorted(faults)], pa.string())
            columns += [
                spread(values.take(pa.array(told)), told, len(values)),
                spread(reasons, told, len(values)),
            ]
            fields += permissive_fields()
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _values(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The typed values, and why there is none at some rows."""
        found, faults = self._framed.read(values)
        if not found:
            return pa.nulls(len(values), self.type), faults
        if len(found) == 1 and len(found[0].rows) == len(values):
            return found[0].values, faults
        places = np.concatenate([one.rows for one in found])
        return spread(joined([one.values for one in found]), places, len(values)), faults


def permissive_fields() -> list[pa.Field]:
    """The columns of records that cannot be decoded."""
    return [pa.field(BYTES_COLUMN, pa.binary()), pa.field(FAULT_COLUMN, pa.string())]
