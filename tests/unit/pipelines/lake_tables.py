"""Iceberg tables in a folder of a test, with a SQLite catalog, and a second hand on them."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.lake.catalogs import CatalogOptions
from tidelog.pipelines.lake.iceberg_table import IcebergTable, TableToMake
from tidelog.pipelines.lake.partitioning import partition_fields

NAME = "lake.orders"
COLUMNS = pa.schema([("id", pa.int64()), ("note", pa.string())])
WHERE = TopicPartition("orders", 0)


def catalog(folder: Path) -> Any:
    return CatalogOptions("test", str(folder)).open()


def make(folder: Path, pipeline: str = "p", *partition_by: str, columns: pa.Schema = COLUMNS) -> IcebergTable:
    return IcebergTable.make(
        catalog(folder), NAME, pipeline, TableToMake(columns, partition_fields(partition_by))
    )


def rows(*ids: int, note: str | None = None) -> pa.Table:
    return pa.table({"id": list(ids), "note": [note] * len(ids)}, schema=COLUMNS)


def commit(table: IcebergTable, end: int, *ids: int) -> None:
    files = table.write(rows(*ids)) if ids else []
    table.commit(files, "cluster", {WHERE: end})


def ids(folder: Path) -> list[int]:
    """What a reader sees."""
    found = catalog(folder).load_table(NAME).scan().to_arrow()
    return sorted(found.column("id").to_pylist())
