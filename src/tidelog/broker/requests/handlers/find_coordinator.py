"""FindCoordinator (key 10), versions 0 to 6: which broker looks after a group or a transactional id.

Key type 0 is a group, 1 a transactional id, 2 a share partition (not supported: INVALID_REQUEST). Version 0
knows groups alone; from version 4 on (KIP-699) many keys are asked and answered at once.

Deliberate difference: where Kafka answers COORDINATOR_NOT_AVAILABLE while it creates `__consumer_offsets` or
`__transaction_state`, the answer waits for the topic, which spares the first client of a cluster a retry.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.coordinators.internal_topic import InternalTopic, coordinator_partition
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

GROUP_KEY = 0
TRANSACTION_KEY = 1
_TOPIC_BY_KEY_TYPE = {GROUP_KEY: GROUP_METADATA_TOPIC, TRANSACTION_KEY: TRANSACTION_STATE_TOPIC}


@dataclass(frozen=True, slots=True)
class Handler:
    """Name the leader of each key's partition, creating the topic of its kind on first use."""

    metadata: Metadata
    group_topic: InternalTopic
    transaction_topic: InternalTopic

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        key_type = getattr(request.body, "key_type", GROUP_KEY)
        topic_name = _TOPIC_BY_KEY_TYPE.get(key_type)
        if topic_name is None or topic_name in self.metadata.image.topics:
            return self._answer(request, key_type)
        delayed = DelayedAnswer()
        topic = self.group_topic if key_type == GROUP_KEY else self.transaction_topic
        topic.create(lambda: delayed.answer(self._answer(request, key_type)))
        return delayed

    def _answer(self, request: Request, key_type: int) -> Mapping[str, object]:
        if request.version < 4:
            return self._find(request, key_type, request.body.key)
        return {"coordinators": [self._find(request, key_type, key) for key in request.body.coordinator_keys]}

    def _find(self, request: Request, key_type: int, key: str) -> Mapping[str, object]:
        topic_name = _TOPIC_BY_KEY_TYPE.get(key_type)
        if topic_name is None:
            return _nowhere(key, ErrorCode.INVALID_REQUEST, f"Key type {key_type} is not supported.")
        topic = self.metadata.image.topics.get(topic_name)
        if topic is None or not topic.partitions:
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
        leader = topic.partitions[coordinator_partition(key, len(topic.partitions))].leader
        node = self.metadata.image.alive_brokers.get(leader)
        endpoint = node.endpoints.get(request.context.listener_name) if node is not None else None
        if endpoint is None:
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
        return {
            "key": key,
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "node_id": leader,
            "host": endpoint.host,
            "port": endpoint.port,
        }


def _nowhere(key: str, error: ErrorCode, message: str) -> Mapping[str, object]:
    return {"key": key, "error_code": error, "error_message": message, "node_id": -1, "host": "", "port": -1}
