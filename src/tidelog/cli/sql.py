"""`tidelog sql`: a first look at topics and Iceberg tables with SQL, through DuckDB in this process."""

import os
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.connection import Connection, connection_options, probe
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.cli.properties import parse_assignments
from tidelog.cli.registry_access import registry_faults, registry_option

if TYPE_CHECKING:
    from tidelog.pipelines.lake.catalogs import CatalogOptions


@click.command()
@click.argument("query", metavar="SQL")
@click.option(
    "--last",
    "records_max",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Of each topic, read the newest records only.",
)
@click.option(
    "--schema", "by_schema", is_flag=True, help="Decode values with the schema that their id names."
)
@registry_option("The schema registry, for --schema.")
@click.option("--warehouse", metavar="DIR", help="The folder of Iceberg tables, with their SQLite catalog.")
@click.option("--catalog", "catalog_name", metavar="NAME", help="The catalog's name (default: tidelog).")
@click.option(
    "--catalog-option", "catalog_options", multiple=True, metavar="NAME=VALUE", help="In pyiceberg's words."
)
@json_option
@connection_options()
def sql(
    connection: Connection,
    query: str,
    records_max: int,
    by_schema: bool,
    registry_url: str,
    warehouse: str | None,
    catalog_name: str | None,
    catalog_options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run one SELECT over topics, and over Iceberg tables of a catalog.

    A topic is a table with the columns key, value, headers, topic, partition, offset and timestamp; with
    --schema it has the fields of its values, and those columns with _ before their names. A name with a dot
    is a table of the catalog. A topic whose name SQL does not take needs double quotes.

    \b
    Examples:
      tidelog sql 'SELECT * FROM orders LIMIT 10'
      tidelog sql 'SELECT partition, count(*) FROM orders GROUP BY ALL' --json
      tidelog sql 'SELECT sum(amount) FROM lake.orders' --warehouse /data/lake
    """
    from tidelog.client.faults import ClientFault
    from tidelog.pipelines.run_settings import kafka_options

    try:
        from tidelog.pipelines.lake.first_look import FirstLook
        from tidelog.pipelines.lake.table_rows import DecodedRows, RecordRows, RowMaker
    except ModuleNotFoundError as fault:
        raise CommandError(f"SQL needs {fault.name}", "pip install 'tidelog[sql]'") from fault
    maker: RowMaker = RecordRows()
    if by_schema:
        maker = DecodedRows(_schemas(registry_url), None, None)
    probe(connection.bootstrap)
    patience_ms = int(connection.timeout_seconds * 1000)
    kafka = kafka_options(
        {
            **connection.properties,
            "bootstrap.servers": connection.bootstrap,
            "default.api.timeout.ms": patience_ms,
        }
    )
    catalog = _catalog(warehouse, catalog_name, parse_assignments(catalog_options, "'--catalog-option'"))
    try:
        with registry_faults():
            answer = FirstLook(kafka, maker, records_max, catalog).run(query)
    except ClientFault as fault:
        raise CommandError(str(fault), "'tidelog sql --help' shows how tables are named") from fault
    for note in answer.notes:
        click.echo(f"note: {note}", err=True)
    names = answer.rows.column_names
    columns = [column.to_pylist() for column in answer.rows.columns]
    rows = [[_plain(value) for value in row] for row in zip(*columns, strict=True)]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows)


def _schemas(registry_url: str) -> Any:
    from tidelog.pipelines.decoded_values import registered_schemas

    return registered_schemas(registry_url, os.environ.get("TIDELOG_REGISTRY_USER_INFO", ""))


def _catalog(warehouse: str | None, name: str | None, options: dict[str, str]) -> "CatalogOptions | None":
    from tidelog.pipelines.lake.catalogs import CatalogOptions

    if warehouse is None and name is None and not options:
        return None
    return CatalogOptions(name or "tidelog", warehouse, options)


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes as 0x and digits, times in ISO form."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
