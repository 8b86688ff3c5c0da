"""AlterReplicaLogDirs (key 34), versions 1 and 2: move replicas between the data folders of this broker
(KIP-113).

The answer comes when the copying has begun; DescribeLogDirs shows the copy as a future replica, and how far
it is behind, until it has taken the log's place. A folder that is none of `log.dirs`: LOG_DIR_NOT_FOUND. A
replica that is not here: REPLICA_NOT_AVAILABLE, and when it comes it begins in that folder. Naming the folder
where a replica is calls a move off.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Begin the moves and answer for every partition."""
    results: dict[str, list[Mapping[str, object]]] = {}
    for directory in request.body.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                error = broker.log_moves.move(TopicPartition(topic.name, index), directory.path)
                row = {"partition_index": index, "error_code": error}
                results.setdefault(topic.name, []).append(row)
    return {"results": [{"topic_name": name, "partitions": rows} for name, rows in results.items()]}
