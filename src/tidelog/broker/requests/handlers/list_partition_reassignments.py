"""ListPartitionReassignments (key 46), version 0: which moves of replicas are under way (KIP-455).

Null topics mean all. Partitions that do not exist, or do not move, are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object]:
        image = self.metadata.image
        asked: Iterable[tuple[str, Iterable[int]]]
        if request.body.topics is None:
            asked = [(name, range(len(topic.partitions))) for name, topic in sorted(image.topics.items())]
        else:
            asked = [(topic.name, topic.partition_indexes) for topic in request.body.topics]
        topics = []
        for name, indexes in asked:
            moving = []
            for index in indexes:
                partition = image.partition(name, index)
                if partition is not None and partition.reassigning:
                    moving.append(
                        {
                            "partition_index": index,
                            "replicas": partition.replicas,
                            "adding_replicas": partition.adding,
                            "removing_replicas": partition.removing,
                        }
                    )
            if moving:
                topics.append({"name": name, "partitions": moving})
        return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics}
