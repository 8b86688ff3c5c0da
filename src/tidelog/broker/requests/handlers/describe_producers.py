"""DescribeProducers (key 61), version 0: the idempotent and transactional producers a partition remembers.

Any replica answers, the leader or a follower, from its own log: an administrator who looks for hanging
transactions asks every broker about everything it has (KIP-664). A name that no topic can have is
INVALID_TOPIC_EXCEPTION.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import topic_name_fault


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each partition on its own."""

    replicas: Replicas

    def handle(self, request: Request) -> Mapping[str, object]:
        describe = cache(self._describe)  # one that is named again is not described again
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [describe(topic.name, index) for index in topic.partition_indexes],
                }
                for topic in request.body.topics
            ]
        }

    def _describe(self, topic: str, index: int) -> Mapping[str, object]:
        if topic_name_fault(topic) is not None:
            return {"partition_index": index, "error_code": ErrorCode.INVALID_TOPIC_EXCEPTION}
        partition = self.replicas.replica(topic, index)
        if partition is None:
            return {"partition_index": index, "error_code": self.replicas.absence(topic, index)}
        return {
            "partition_index": index,
            "active_producers": [
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.last_timestamp_ms,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "current_txn_start_offset": producer.current_transaction_start_offset,
                }
                for producer in partition.log.producers.describe()
            ],
        }
