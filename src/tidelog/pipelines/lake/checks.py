"""What can be known of a table before a pipeline writes it: its catalog, its columns, the registry's schemas.

Nothing is made or changed; a SQLite catalog that is not there yet is not opened either.
"""

from pathlib import Path

from tidelog.client.faults import BadOption, ClientFault
from tidelog.pipelines.lake.catalogs import CatalogFault, CatalogOptions
from tidelog.pipelines.lake.column_types import DoNotMerge, merged_schema
from tidelog.pipelines.lake.first_columns import first_columns, latest_schema
from tidelog.pipelines.lake.iceberg_table import IcebergTable
from tidelog.pipelines.lake.uses import LakeUse
from tidelog.pipelines.problems import Findings, Problem, Where


def check_lake(use: LakeUse) -> Findings:
    """What is wrong, and what a person should know."""
    notes: tuple[str, ...] = ()
    try:
        if use.values is not None and use.values.subject is not None and latest_schema(use.values) is None:
            notes = (
                f"subject {use.values.subject} has no schema yet: columns are made of the first records",
            )
    except ClientFault as fault:
        return _problem("registry", fault)
    try:
        columns = first_columns(use.values)
    except BadOption as fault:
        return _problem("decode", fault)
    try:
        table = _table(use)
    except BadOption as fault:
        return _problem("table", fault)
    except CatalogFault as fault:
        return _problem("catalog_options" if use.catalog.options else "warehouse", fault)
    if table is None:
        known = set(columns.names)
        missing = [one.column for one in use.partition_by if one.column not in known]
        if missing:
            return _problem(
                "partition_by", f"the table has no column {missing[0]}; it has {', '.join(columns.names)}"
            )
        return Findings(notes=notes)
    try:
        merged_schema(table.schema, columns)
    except DoNotMerge as fault:
        return _problem("table", f"table {use.table} is of other columns: {fault}")
    if table.position is None:
        notes += (f"table {use.table} is there, and has nothing of this pipeline yet",)
    return Findings(notes=notes)


def _table(use: LakeUse) -> IcebergTable | None:
    if not _is_there(use.catalog):
        return None
    return IcebergTable.find(use.catalog.open(), use.table, use.pipeline)


def _is_there(catalog: CatalogOptions) -> bool:
    """Opening a SQLite catalog makes it."""
    address = catalog.properties().get("uri", "")
    if not address.startswith("sqlite:///"):
        return True
    return Path(address.removeprefix("sqlite:///").partition("?")[0]).exists()


def _problem(option: str, fault: object) -> Findings:
    where: Where = ("options", option)
    return Findings((Problem(where, str(fault)),))
