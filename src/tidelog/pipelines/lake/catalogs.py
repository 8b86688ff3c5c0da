"""Iceberg catalogs: a SQLite file beside the tables, or what pyiceberg is told of another.

    warehouse only                       <warehouse>/catalog.db
    options with type or uri             as they are: {type: rest, uri: http://…}, {type: glue}, …
    neither                              the catalog of this name in ~/.pyiceberg.yaml or PYICEBERG_CATALOG__…

Files go through pyiceberg's FileIO of Arrow: folders, s3://, gs://, hdfs://, with its options
(s3.endpoint, …).
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.client.faults import BadOption, ClientFault

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

log = logging.getLogger(__name__)

DATABASE = "catalog.db"
#: a commit waits so long for another one's lock on the SQLite file
LOCK_SECONDS = 30
_WITHOUT = "Iceberg tables need pyiceberg: pip install 'tidelog[iceberg]'"
_ITS_OWN = ("type", "uri", "py-catalog-impl")


class CatalogFault(ClientFault):
    """A catalog cannot be reached, or refuses."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Which catalog, as somebody wrote it."""

    name: str
    warehouse: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def properties(self) -> dict[str, str]:
        """For pyiceberg; raises BadOption."""
        found = dict(self.options)
        if self.warehouse is not None:
            found["warehouse"] = _address(self.warehouse)
        if any(name in found for name in _ITS_OWN) or self.warehouse is None:
            return found
        if not found["warehouse"].startswith("file://"):
            raise BadOption(
                f"a warehouse in {self.warehouse} needs a catalog elsewhere: "
                "catalog_options: {uri: sqlite:////data/catalog.db}, or {type: rest, uri: http://…}"
            )
        database = Path(found["warehouse"].removeprefix("file://")) / DATABASE
        return {"type": "sql", "uri": f"sqlite:///{database}?timeout={LOCK_SECONDS}", **found}

    def open(self) -> "Catalog":
        """The catalog; raises BadOption, CatalogFault."""
        try:
            from pyiceberg.catalog import load_catalog
        except ModuleNotFoundError:
            raise BadOption(_WITHOUT) from None
        properties = self.properties()
        folder = properties.get("warehouse", "")
        try:
            if folder.startswith("file://"):
                Path(folder.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
            return load_catalog(self.name, **properties)
        except ModuleNotFoundError as fault:
            raise BadOption(f"catalog {self.name}: {fault}; pip install 'tidelog[iceberg]'") from fault
        except Exception as fault:
            # Each catalog has faults of its own: of HTTP, of SQL, of a cloud.
            raise CatalogFault(f"catalog {self.name} cannot be opened: {one_line(fault)}") from fault


def _address(warehouse: str) -> str:
    return warehouse if "://" in warehouse else f"file://{Path(warehouse).absolute()}"


def passing_faults() -> tuple[type[Exception], ...]:
    """What catalogs and stores raise that may be otherwise the next time."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, RESTError

    found: tuple[type[Exception], ...] = (
        CommitFailedException,
        CommitStateUnknownException,
        RESTError,
        OSError,
    )
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError:
        return found
    return (*found, SQLAlchemyError)


def delete_files(io: "FileIO", paths: Iterable[str]) -> None:
    """Delete what nobody needs; what cannot be deleted is left over."""
    for path in paths:
        try:
            io.delete(path)
        except OSError as fault:
            log.warning("%s is left over: %s", path, one_line(fault))


def one_line(fault: BaseException) -> str:
    """What a library says, in one line."""
    words = " ".join(str(fault).split())[:500]
    return f"{type(fault).__name__}: {words}" if words else type(fault).__name__


def identifier(table: str) -> tuple[str, ...]:
    """namespace.table as a catalog knows it; raises BadOption."""
    parts = tuple(table.split("."))
    if len(parts) < 2 or not all(parts):
        raise BadOption(f"a table is namespace.name, as in lake.orders, not {table!r}")
    return parts


def described(options: Mapping[str, Any]) -> str:
    """A catalog in a plan's words."""
    given = options["catalog_options"]
    if options["warehouse"] is not None and not any(name in given for name in _ITS_OWN):
        return f"SQLite in {options['warehouse']}"
    return f"{options['catalog']} ({given.get('type') or given.get('uri') or 'as pyiceberg is configured'})"
