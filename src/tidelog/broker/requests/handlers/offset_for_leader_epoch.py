"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where the log of a leader epoch ended (KIP-101, KIP-320).

Clients and followers find with it the point where their history and the leader's part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.request import Request


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each partition on its own."""

    replicas: Replicas

    def handle(self, request: Request) -> Mapping[str, object]:
        return {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        {"partition": wanted.partition, **self._end_offset(topic.topic, wanted)}
                        for wanted in topic.partitions
                    ],
                }
                for topic in request.body.topics
            ]
        }

    def _end_offset(self, topic: str, wanted: Any) -> Mapping[str, object]:
        partition, error = self.replicas.find_in_epoch(topic, wanted.partition, wanted.current_leader_epoch)
        if partition is None:
            return {"error_code": error}
        epoch, end_offset = partition.log.epoch_end_offset(wanted.leader_epoch)
        return {"leader_epoch": epoch, "end_offset": end_offset}
