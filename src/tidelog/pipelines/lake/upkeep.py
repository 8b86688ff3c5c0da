"""Small files merged and old snapshots expired, between two batches of the pipeline that writes a table.

Merging rewrites the small files of a partition, as many as make one file, in one commit. It is tried once:
where somebody else has changed the table meanwhile it is left for the next time, and what was written goes.

pyiceberg takes expired snapshots out of the metadata; the files that only they have are deleted here.
"""

import logging
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tidelog.pipelines.lake.catalogs import delete_files, one_line, passing_faults

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

EXPIRY_EVERY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """When files are merged and snapshots expire; 0 is never."""

    compact_files: int
    file_bytes: int
    expire_hours: float


class Upkeep:
    """Of one table; called after each batch."""

    def __init__(self, table: "Table", options: UpkeepOptions) -> None:
        self._table = table
        self._options = options
        self._commits = 0
        self._expire_at = time.monotonic() + EXPIRY_EVERY_SECONDS

    def __call__(self) -> None:
        """Do what is due; what cannot be done now is done later."""
        self._commits += 1
        try:
            if self._options.compact_files and self._commits >= self._options.compact_files:
                self._commits = 0
                merge_small_files(self._table, self._options)
            if self._options.expire_hours and time.monotonic() >= self._expire_at:
                self._expire_at = time.monotonic() + EXPIRY_EVERY_SECONDS
                expire_snapshots(self._table, timedelta(hours=self._options.expire_hours))
        except passing_faults() as fault:
            # Rows are safe without it.
            log.warning("upkeep of %s: %s", ".".join(self._table.name()), one_line(fault))


def merge_small_files(table: "Table", options: UpkeepOptions) -> int:
    """Merge the small files of partitions that have enough of them; how many were merged."""
    table.refresh()
    merged = 0
    for tasks in _crowded(table, options):
        if _merge(table, tasks):
            merged += len(tasks)
    return merged


def _crowded(table: "Table", options: UpkeepOptions) -> "list[list[FileScanTask]]":
    small: dict[str, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        file = task.file
        if file.file_size_in_bytes < options.file_bytes and file.spec_id == table.spec().spec_id:
            small[repr(file.partition)].append(task)
    groups: list[list[FileScanTask]] = []
    for tasks in small.values():
        if len(tasks) >= max(2, options.compact_files):
            groups += [group for group in _packed(tasks, options.file_bytes) if len(group) > 1]
    return groups


def _packed(tasks: "list[FileScanTask]", size_bytes: int) -> "list[list[FileScanTask]]":
    """Files in groups of about one file's size, so that one group fits into memory."""
    groups: list[list[FileScanTask]] = [[]]
    room = size_bytes
    for task in tasks:
        if groups[-1] and task.file.file_size_in_bytes > room:
            groups.append([])
            room = size_bytes
        groups[-1].append(task)
        room -= task.file.file_size_in_bytes
    return groups


def _merge(table: "Table", tasks: "list[FileScanTask]") -> bool:
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    written = list(_dataframe_to_data_files(table.metadata, rows, table.io))
    # What others have added meanwhile is none of our business; what they took away is looked for.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    try:
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
            for task in tasks:
                change.delete_data_file(task.file)
            for file in written:
                change.append_data_file(file)
    except CommitFailedException as fault:
        log.info("small files of %s are merged later: %s", ".".join(table.name()), one_line(fault))
        delete_files(table.io, {file.file_path for file in written})
        table.refresh()
        return False
    return True


def expire_snapshots(table: "Table", age: timedelta) -> int:
    """Forget snapshots of more than this age, and delete what only they have; how many there were."""
    table.refresh()
    metadata = table.metadata
    before_ms = int((datetime.now(UTC) - age).timestamp() * 1000)
    kept = {one.snapshot_id for one in metadata.refs.values()}
    old = [one for one in metadata.snapshots if one.timestamp_ms < before_ms and one.snapshot_id not in kept]
    if not old:
        return 0
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
    table.refresh()
    delete_files(table.io, _files(table.io, old) - _files(table.io, table.metadata.snapshots))
    return len(old)


def _files(io: "FileIO", snapshots: "list[Snapshot]") -> set[str]:
    """All files of snapshots: lists of manifests, manifests, data."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found |= {_path(entry.data_file) for entry in manifest.fetch_manifest_entry(io)}
    return found


def _path(file: "DataFile") -> str:
    return file.file_path
