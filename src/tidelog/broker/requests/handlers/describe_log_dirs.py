"""DescribeLogDirs (key 35), versions 1 to 5: the data folders of this broker and what they hold.

Null topics mean all. Partitions that are not here are left out. From version 4 the size and the free space of
the volume are sent, -1 where they cannot be told (KIP-827). A replica that moves to another folder is shown
in both: in the new one as a future replica, with how many offsets it is behind. A folder that is offline is
shown with KAFKA_STORAGE_ERROR and without replicas. No folder is cordoned (version 5, KIP-1066).
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from tidelog.broker.replication.log_moves import LogMoves
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.log_directories import LogDirectories

if TYPE_CHECKING:
    from tidelog.storage.partition_log import PartitionLog

Fields = dict[str, object]

_UNKNOWN_BYTES = -1


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the open logs."""

    log_directories: LogDirectories
    log_moves: LogMoves

    def handle(self, request: Request) -> Mapping[str, object]:
        logs = self._chosen_logs(request)
        futures = self.log_moves.futures
        results: list[Fields] = []
        for directory in self.log_directories.directories:
            topics: dict[str, list[Fields]] = {}
            for log in logs:
                place = log.topic_partition
                if str(PurePath(log.directory).parent) == str(PurePath(directory.path)):
                    topics.setdefault(place.topic, []).append(_row(log, 0, is_future=False))
                future = futures.get(place)
                if future is not None and future.target == directory.path:
                    topics.setdefault(place.topic, []).append(_row(future.copy, future.lag, is_future=True))
            total_bytes, usable_bytes = _volume_bytes(directory.path)
            results.append(
                {
                    "error_code": ErrorCode.NONE,
                    "log_dir": str(PurePath(directory.path)),
                    "topics": [
                        {"name": name, "partitions": partitions} for name, partitions in topics.items()
                    ],
                    "total_bytes": total_bytes,
                    "usable_bytes": usable_bytes,
                }
            )
        for offline in self.log_directories.offline:
            results.append(
                {
                    "error_code": ErrorCode.KAFKA_STORAGE_ERROR,
                    "log_dir": str(PurePath(offline.path)),
                    "topics": [],
                    "total_bytes": _UNKNOWN_BYTES,
                    "usable_bytes": _UNKNOWN_BYTES,
                }
            )
        return {"error_code": ErrorCode.NONE, "results": results}

    def _chosen_logs(self, request: Request) -> list["PartitionLog"]:
        open_logs = self.log_directories.logs
        if request.body.topics is None:
            return [open_logs[key] for key in sorted(open_logs)]
        wanted = sorted(
            {
                TopicPartition(topic.topic, index)
                for topic in request.body.topics
                for index in topic.partitions
            }
        )
        return [open_logs[key] for key in wanted if key in open_logs]


def _row(log: "PartitionLog", lag: int, *, is_future: bool) -> Fields:
    return {
        "partition_index": log.topic_partition.partition,
        "partition_size": log.size_bytes,
        "offset_lag": lag,
        "is_future_key": is_future,
    }


def _volume_bytes(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    return usage.total, usage.free
