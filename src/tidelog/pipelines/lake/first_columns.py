"""The columns that a table has from the beginning: those of records, and of the latest schema, if any."""

import pyarrow as pa

from tidelog.client.faults import BadOption, ClientFault
from tidelog.client.masking import masked_text
from tidelog.pipelines.decoded_values import registered_schemas
from tidelog.pipelines.lake.column_types import plain_schema
from tidelog.pipelines.lake.table_rows import OWN, RECORD, DecodedRows, RecordRows, RowMaker, writer_columns
from tidelog.pipelines.lake.uses import ValueSchemas
from tidelog.schemas.registered import RegisteredSchema
from tidelog.schemas.registry_client import RegistryFault, RegistryUnreachable


class RegistryAway(ClientFault):
    """The registry cannot be asked."""


def row_maker(values: ValueSchemas | None) -> RowMaker:
    """What makes rows of records."""
    if values is None:
        return RecordRows()
    schemas = registered_schemas(values.registry_url, values.user_info)
    return DecodedRows(schemas, values.kind, values.message)


def latest_schema(values: ValueSchemas) -> RegisteredSchema | None:
    """The subject's latest schema, None where there is none yet; raises RegistryAway."""
    if values.subject is None:
        return None
    schemas = registered_schemas(values.registry_url, values.user_info)
    try:
        return schemas.version(values.subject)
    except RegistryFault as fault:
        if fault.status == 404:
            return None
        why = f"{fault.message} ({fault.code})"
    except (RegistryUnreachable, ValueError) as fault:
        why = str(fault)
    raise RegistryAway(f"the registry at {masked_text(values.registry_url)}: {why}")


def first_columns(values: ValueSchemas | None) -> pa.Schema:
    """Of a table that is made now; raises BadOption, RegistryAway."""
    if values is None:
        return RECORD
    schema = latest_schema(values)
    if schema is None:
        return OWN
    try:
        written = writer_columns(schema, values.kind, values.message)
    except ValueError as fault:
        raise BadOption(f"schema {schema.id} of {values.subject} cannot be columns: {fault}") from fault
    return plain_schema(pa.schema([*written.schema, *OWN]))
