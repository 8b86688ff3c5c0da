"""Pipelines that tell a whole team how they are: a compacted topic of the cluster that they read.

    key                   value
    <name>                {"run": "…", "place": "host:folder", "lease_seconds": 15,
                           "checkpoint": "…", "status": {…}}
    <name>/stop           {"run": "…", "by": "host"}        asks that run to stop

A run writes its record again and again, in transactions of the pipeline's own transactional id: who starts
the pipeline elsewhere takes that id, and the broker refuses the run before from then on. Whoever may read the
topic sees the pipelines, whoever may write it can ask them to stop. Records of others are not trusted: sizes
are bounded, and what has another form is passed over.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.client.faults import Refusal
from tidelog.client.partition_reader import PartitionReader
from tidelog.client.pipeline_places import ALIVE, DIED
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.record_writer import RecordWriter
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records

TOPIC = "__tidelog_pipelines"
PLACE = TopicPartition(TOPIC, 0)
#: a log that is read from its start must stay small
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    # Ages are of one clock, whoever wrote.
    "message.timestamp.type": "LogAppendTime",
}
STOP = "/stop"
PIPELINES_MAX = 1_000
RECORD_BYTES_MAX = 1 << 20
READ_PATIENCE_MS = 5_000
#: a run that has been silent for so many of its leases has died, for those who only look
SILENT_LEASES_MAX = 2


@dataclass(frozen=True, slots=True)
class SharedPipeline:
    """What the newest record of a pipeline says."""

    name: str
    run: str
    #: the machine, and the folder of its own files there
    place: str
    lease_seconds: float
    checkpoint: str
    #: the document of `pipelines.running.Status`
    status: dict[str, Any]
    #: when the broker got it, and where it lies
    told_ms: int
    offset: int

    @property
    def host(self) -> str:
        return self.place.partition(":")[0]

    @property
    def is_alive(self) -> bool:
        """Whether it said so, not whether that still holds."""
        return self.status.get("state") in ALIVE

    def seen(self, now_ms: float) -> dict[str, Any]:
        """The status for somebody who looks now: a run that has fallen silent has died."""
        silent = now_ms - self.told_ms > SILENT_LEASES_MAX * self.lease_seconds * 1000
        return {**self.status, "state": DIED} if self.is_alive and silent else self.status


@dataclass(slots=True)
class SharedPipelines:
    """Reads the topic, each time from where it was."""

    cluster: Cluster
    pipelines: dict[str, SharedPipeline] = field(default_factory=dict)
    _stops: dict[str, str] = field(default_factory=dict)
    _next_offset: int | None = None

    def refresh(self) -> None:
        """Read what is new; nothing where there is no such topic. Raises ClientFault."""
        if TOPIC not in self.cluster.topics([TOPIC]):
            return
        first = self.cluster.list_offsets({PLACE: EARLIEST})[PLACE].offset
        end = self.cluster.list_offsets({PLACE: LATEST}, 0)[PLACE].offset
        start = self._next_offset
        if start is None or start > end:
            # Also where the topic was made anew.
            self.pipelines.clear()
            self._stops.clear()
            start = first
        for piece in PartitionReader(self.cluster, PLACE).slices(max(start, first), end, READ_PATIENCE_MS):
            self._take(piece.records)
        self._next_offset = end

    def _take(self, data: memoryview) -> None:
        for position, header in iterate_headers(data):
            if header.control:
                continue
            batch = data[position : position + header.size_bytes]
            for record in iterate_records(batch, header, RECORD_BYTES_MAX):
                if record.key is not None and len(record.key) <= RECORD_BYTES_MAX:
                    self._note(bytes(record.key).decode(errors="replace"), record, header.max_timestamp_ms)

    def _note(self, key: str, record: Record, told_ms: int) -> None:
        try:
            told = None if record.value is None else json.loads(bytes(record.value))
            if key.endswith(STOP):
                self._stops[key.removesuffix(STOP)] = str(told["run"]) if told else ""
            elif told is None:
                self.pipelines.pop(key, None)
            elif key in self.pipelines or len(self.pipelines) < PIPELINES_MAX:
                self.pipelines[key] = _read(key, told, told_ms, record.offset)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return

    def is_asked_to_stop(self, name: str, run: str) -> bool:
        """Whether somebody asked this very run."""
        return self._stops.get(name) == run

    def ask_to_stop(self, pipeline: SharedPipeline, by: str) -> None:
        """Ask a run to stop. Raises ClientFault."""
        value = json.dumps({"run": pipeline.run, "by": by}).encode()
        record = Record(0, int(time.time() * 1000), f"{pipeline.name}{STOP}".encode(), value)
        writer = RecordWriter(self.cluster, None)
        writer.send(BatchToSend(*PLACE, build_batch([record])))
        writer.flush()


def _read(name: str, told: dict[str, Any], told_ms: int, offset: int) -> SharedPipeline:
    status = told["status"]
    if not isinstance(status, dict) or status.get("name") != name:
        raise ValueError(name)
    return SharedPipeline(
        name,
        str(told["run"]),
        str(told["place"]),
        float(told["lease_seconds"]),
        str(told["checkpoint"]),
        status,
        told_ms,
        offset,
    )


def shared_pipelines(cluster: Cluster) -> list[SharedPipeline]:
    """All of a cluster, by name; none where nobody may look or none was ever shared."""
    found = SharedPipelines(cluster)
    try:
        found.refresh()
    except Refusal as refusal:
        if refusal.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
    return [found.pipelines[name] for name in sorted(found.pipelines)]
