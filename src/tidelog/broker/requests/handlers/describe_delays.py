"""DescribeDelays (key 10004), version 0: what waits in the partitions of delay topics that a broker leads.

`tidelog delay` asks over the connection that it has. Never advertised, no tagged fields. Body and answer are
JSON; a topic is asked for by its name, all without one, and its next records up to `records`:

    {"topic": "orders-later", "records": 10}

    {"partitions": [{"topic": "orders-later", "partition": 0, "target": "orders", "waiting": 3, "due": 0,
                     "next_due_ms": 1893456000000, "late_ms": 0, "forwarded": 7, "cancelled": 1, "reason": "",
                     "records": [{"offset": 8, "due_ms": 1893456000000}]}]}
    {"error_code": 31}        who asks may not Describe the cluster
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.runtime.deferred import Deferred
from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import MalformedRequest

if TYPE_CHECKING:
    from tidelog.broker.coordinators.delays import Delays
    from tidelog.broker.requests.authorization import Authorization

RECORDS_MAX = 1_000
#: of all partitions together
ANSWER_RECORDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Handler:
    """The encoded body of the answer."""

    authorization: "Authorization | None"
    delays: "Deferred[Delays]"

    def handle(self, context: ConnectionContext, body: memoryview) -> bytes:
        authorization = self.authorization
        if authorization is not None and not authorization.allows(
            context, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            return _encoded({"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)})
        topic, records_count = _read(body)
        rows: list[dict[str, object]] = []
        left = ANSWER_RECORDS_MAX
        forwarders = {} if self.delays.made is None else self.delays.made.forwarders
        for partition, forwarder in forwarders.items():
            if topic is None or partition.topic == topic:
                described = forwarder.describe(min(records_count, left))
                left -= len(described.records)
                rows.append(described._asdict())
        return _encoded({"partitions": rows})


def _read(body: memoryview) -> tuple[str | None, int]:
    try:
        asked = json.loads(bytes(body))
        topic, count = asked.get("topic"), asked.get("records", 0)
    except (ValueError, AttributeError, RecursionError) as fault:
        raise MalformedRequest(f"DescribeDelays has no JSON object: {fault}") from fault
    if (
        not (topic is None or isinstance(topic, str))
        or type(count) is not int
        or not 0 <= count <= RECORDS_MAX
    ):
        raise MalformedRequest(f"DescribeDelays asks for a topic and up to {RECORDS_MAX} records")
    return topic, count


def _encoded(answer: dict[str, object]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
