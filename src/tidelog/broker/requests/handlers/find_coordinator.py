"""FindCoordinator (key 10), versions 0 to 6: which broker looks after a group, a transactional id or a share
partition.

Key type 0 is a group, 1 a transactional id, and since version 6 2 a share partition, named by
`group:topic id:partition` (KIP-932). Version 0 knows groups alone; from version 4 on (KIP-699) many keys are
asked and answered at once.

Deliberate difference: where Kafka answers COORDINATOR_NOT_AVAILABLE while it creates `__consumer_offsets` or
another internal topic, the answer waits for the topic, which spares the first client of a cluster a retry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.broker.coordinators.internal_topic import InternalTopic, coordinator_partition
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from tidelog.storage.partition_metadata import decode_topic_id

GROUP_KEY = 0
TRANSACTION_KEY = 1
SHARE_KEY = 2
KEYS_SINCE = 4
SHARE_KEY_SINCE = 6
_TOPIC_BY_KEY_TYPE = {
    GROUP_KEY: GROUP_METADATA_TOPIC,
    TRANSACTION_KEY: TRANSACTION_STATE_TOPIC,
    SHARE_KEY: SHARE_GROUP_STATE_TOPIC,
}


@dataclass(frozen=True, slots=True)
class Handler:
    """Name the leader of each key's partition, creating the topic of its kind on first use."""

    metadata: Metadata
    group_topic: InternalTopic
    transaction_topic: InternalTopic
    share_state_topic: InternalTopic

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        key_type = getattr(request.body, "key_type", GROUP_KEY)
        topics = (self.group_topic, self.transaction_topic, self.share_state_topic)
        topic = topics[key_type] if key_type in _TOPIC_BY_KEY_TYPE else None
        if topic is None or topic.name in self.metadata.image.topics:
            return self._answer(request, key_type)
        if all(_fault(request, key_type, key) is not None for key in _keys(request)):
            return self._answer(request, key_type)
        delayed = DelayedAnswer()
        topic.create(lambda: delayed.answer(self._answer(request, key_type)))
        return delayed

    def _answer(self, request: Request, key_type: int) -> Mapping[str, object]:
        found = [self._find(request, key_type, key) for key in _keys(request)]
        return found[0] if request.version < KEYS_SINCE else {"coordinators": found}

    def _find(self, request: Request, key_type: int, key: str) -> Mapping[str, object]:
        fault = _fault(request, key_type, key)
        if fault is not None:
            return _nowhere(key, ErrorCode.INVALID_REQUEST, fault)
        topic = self.metadata.image.topics.get(_TOPIC_BY_KEY_TYPE[key_type])
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


def _keys(request: Request) -> Sequence[str]:
    keys: Sequence[str] = (
        (request.body.key,) if request.version < KEYS_SINCE else request.body.coordinator_keys
    )
    return keys


def _fault(request: Request, key_type: int, key: str) -> str | None:
    """What is wrong with a key, or with its type."""
    if key_type not in _TOPIC_BY_KEY_TYPE or (key_type == SHARE_KEY and request.version < SHARE_KEY_SINCE):
        return f"Key type {key_type} is not supported."
    if key_type == SHARE_KEY and not _is_share_key(key):
        return "A share partition is group:topic id:partition."
    return None


def _is_share_key(key: str) -> bool:
    """Whether it names a share partition; the id of a group may have colons too."""
    parts = key.rsplit(":", 2)
    if len(parts) < 3 or not parts[0] or not parts[2].isdecimal():
        return False
    try:
        decode_topic_id(parts[1])
    except ValueError:
        return False
    return True


def _nowhere(key: str, error: ErrorCode, message: str) -> Mapping[str, object]:
    return {"key": key, "error_code": error, "error_message": message, "node_id": -1, "host": "", "port": -1}
