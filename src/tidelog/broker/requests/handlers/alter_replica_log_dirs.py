"""AlterReplicaLogDirs (key 34), versions 1 and 2: move replicas between the data folders of this broker
(KIP-113).

The answer comes when the copying has begun; DescribeLogDirs shows the copy as a future replica, and how far
it is behind, until it has taken the log's place. A folder that is none of `log.dirs`: LOG_DIR_NOT_FOUND. A
replica that is not here: REPLICA_NOT_AVAILABLE, and when it comes it begins in that folder. Naming the folder
where a replica is calls a move off.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.replication.log_moves import LogMoves
from tidelog.broker.requests.request import Request
from tidelog.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class Handler:
    """Begin the moves and answer for every partition."""

    log_moves: LogMoves

    def handle(self, request: Request) -> Mapping[str, object]:
        results: dict[str, list[Mapping[str, object]]] = {}
        for directory in request.body.dirs:
            for topic in directory.topics:
                for index in topic.partitions:
                    error = self.log_moves.move(TopicPartition(topic.name, index), directory.path)
                    row = {"partition_index": index, "error_code": error}
                    results.setdefault(topic.name, []).append(row)
        return {"results": [{"topic_name": name, "partitions": rows} for name, rows in results.items()]}
