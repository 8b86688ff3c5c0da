"""FindCoordinator (key 10), versions 0 to 6: which broker looks after a group or a transactional id.

Key type 0 is a group, 1 a transactional id, 2 a share partition (not supported: INVALID_REQUEST). Version 0
knows groups alone; from version 4 on (KIP-699) many keys are asked and answered at once.

Deliberate difference: where Kafka answers COORDINATOR_NOT_AVAILABLE while it creates `__consumer_offsets` or
`__transaction_state`, the answer waits for the topic, which spares the first client of a cluster a retry.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.coordinator_runtime import coordinator_partition
from tidelog.broker.parking import Parked
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

GROUP_KEY = 0
TRANSACTION_KEY = 1
_TOPIC_BY_KEY_TYPE = {GROUP_KEY: GROUP_METADATA_TOPIC, TRANSACTION_KEY: TRANSACTION_STATE_TOPIC}


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Name the leader of each key's partition, creating the topic of its kind on first use."""
    key_type = getattr(request.body, "key_type", GROUP_KEY)
    topic_name = _TOPIC_BY_KEY_TYPE.get(key_type)
    if topic_name is None or topic_name in broker.image.topics:
        return _answer(broker, request, key_type)
    parked = Parked()
    create = broker.groups.create_topic if key_type == GROUP_KEY else broker.transactions.create_topic
    create(lambda: parked.answer(_answer(broker, request, key_type)))
    return parked


def _answer(broker: "Broker", request: "Request", key_type: int) -> Mapping[str, object]:
    if request.version < 4:
        return _find(broker, request, key_type, request.body.key)
    return {"coordinators": [_find(broker, request, key_type, key) for key in request.body.coordinator_keys]}


def _find(broker: "Broker", request: "Request", key_type: int, key: str) -> Mapping[str, object]:
    topic_name = _TOPIC_BY_KEY_TYPE.get(key_type)
    if topic_name is None:
        return _nowhere(key, ErrorCode.INVALID_REQUEST, f"Key type {key_type} is not supported.")
    topic = broker.image.topics.get(topic_name)
    if topic is None or not topic.partitions:
        return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
    leader = topic.partitions[coordinator_partition(key, len(topic.partitions))].leader
    node = broker.image.alive_brokers.get(leader)
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
