"""The table that a plan writes, as a value: what can be looked at before anything is read."""

from dataclasses import dataclass, field

from tidelog.pipelines.lake.catalogs import CatalogOptions
from tidelog.pipelines.lake.partitioning import PartitionField


@dataclass(frozen=True, slots=True)
class ValueSchemas:
    """How values are decoded: schemas of one kind, of a registry."""

    kind: str
    registry_url: str
    user_info: str = field(repr=False)
    #: whose latest schema says the first columns; None where topics are several
    subject: str | None
    #: of a Protobuf schema; the first
    message: str | None


@dataclass(frozen=True, slots=True)
class LakeUse:
    """One table, written by a pipeline."""

    pipeline: str
    catalog: CatalogOptions
    table: str
    #: None for rows that are records
    values: ValueSchemas | None
    partition_by: tuple[PartitionField, ...]

    @property
    def dead_letters(self) -> str:
        """The table of records that cannot be rows."""
        return f"{self.table}_dlq"
