"""Where a pipeline has come to, as its table knows it: offsets in the summaries of snapshots.

    tidelog.pipeline    orders
    tidelog.cluster     the cluster's id
    tidelog.offsets     {"orders": {"0": 42}}     the next to read, after the records of this snapshot
    tidelog.batch       a number of the attempt, to know it again

Records and offsets are one commit, so both are in the table or neither. The newest snapshot of a pipeline,
from the table's current one back, says where it goes on; after a rollback of the table that is an older one,
and what was rolled back is read again.

Somebody may expire snapshots, those of a pipeline that wrote nothing for long among them. So each commit
also sets the table's property `tidelog.position.<pipeline>`, which is believed where the history is cut off.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.pipelines.offset_planning import Offsets, from_json, to_json

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

PREFIX = "tidelog."
PIPELINE, CLUSTER = PREFIX + "pipeline", PREFIX + "cluster"
OFFSETS, BATCH = PREFIX + "offsets", PREFIX + "batch"
#: of the first snapshot of a table; what is before others may have been expired
FIRST_SEQUENCE_NUMBER = 1
_PROPERTY = PREFIX + "position."


@dataclass(frozen=True, slots=True)
class Position:
    """How far a pipeline is, and the attempt that brought it there."""

    cluster: str
    offsets: Offsets
    batch: str

    def summary(self, pipeline: str) -> dict[str, str]:
        """For the summary of a snapshot."""
        offsets = json.dumps(to_json(self.offsets), separators=(",", ":"))
        return {PIPELINE: pipeline, CLUSTER: self.cluster, OFFSETS: offsets, BATCH: self.batch}

    def property(self, pipeline: str) -> dict[str, str]:
        """For the properties of a table."""
        summary = self.summary(pipeline)
        return {f"{_PROPERTY}{pipeline}": json.dumps(summary, separators=(",", ":"), sort_keys=True)}


def history(metadata: "TableMetadata") -> "Iterator[Snapshot]":
    """The snapshots of the table as it is now, from the current one back, as far as they are there."""
    by_id = {one.snapshot_id: one for one in metadata.snapshots}
    current = metadata.current_snapshot()
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = None if parent is None else by_id.get(parent)


def position_of(metadata: "TableMetadata", pipeline: str) -> Position | None:
    """Where a pipeline has come to in a table; None when it has not begun there."""
    oldest = None
    for snapshot in history(metadata):
        found = _summary(snapshot)
        if found.get(PIPELINE) == pipeline:
            return _position(found)
        oldest = snapshot
    told = metadata.properties.get(f"{_PROPERTY}{pipeline}")
    if told is None or oldest is None or oldest.sequence_number == FIRST_SEQUENCE_NUMBER:
        # The whole history is there: the table was rolled back to before this pipeline, if it ever ran.
        return None
    return _position(json.loads(told))


def _summary(snapshot: "Snapshot") -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _position(found: Mapping[str, str]) -> Position:
    return Position(found[CLUSTER], from_json(json.loads(found[OFFSETS])), found[BATCH])
