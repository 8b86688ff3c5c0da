"""DescribeSharePartitions (key 10003), version 0: what share groups have in flight in partitions led here.

No Kafka protocol tells which records are acquired, how often they were delivered and when locks end: it is in
the memory of the partition's leader. Our tools ask each leader. Never advertised, no tagged fields; the body
is JSON, `{"group": "invoices"}` for one group and `{}` for all; the answer too:

    {"partitions": [{"group": "invoices", "topic": "orders", "partition": 0, "phase": "Active",
                     "start_offset": 4, "next_offset": 9, "acquired": 2, "available": 1, "resting": 1,
                     "archiving": 0, "archived": 1, "acknowledged": 1, "deliveries": {"1": 2, "3": 1},
                     "members": {"Zx...": 2}, "lock_ends_in_ms": 1500, "records_max": 2000,
                     "delivery_count_limit": 5, "dead_letter_topic": null}],
     "groups": [{"group": "invoices", "deliveries": {"1": 7, "2": 3}, "acknowledgements": {"accept": 1},
                 "lock_expiries": 3, "dead_letters": 0, "dead_letters_given_up": 0}],
     "left_out": 0}
    {"error_code": 30}        who asks may not Describe the group; 31: the cluster

`groups` counts records since this broker started. Of one group, topics that the asker may not Describe are
left out. A group is told of while members fetch from this broker.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.runtime.deferred import Deferred
from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock
from tidelog.protocol.primitives import MalformedRequest
from tidelog.shares.in_flight import in_flight
from tidelog.shares.states import AcknowledgeType

if TYPE_CHECKING:
    from tidelog.broker.coordinators.share_partitions import SharedPartition
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.broker.requests.authorization import Authorization
    from tidelog.broker.runtime.share_counts import ShareGroupCounts

BODY_BYTES_MAX = 4_096
#: what is looked at in one answer; the rest is left out and counted
PARTITIONS_MAX = 1_000
RUNS_MAX = 50_000
GROUPS_MAX = 1_000
MEMBERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Handler:
    """The encoded body of the answer."""

    authorization: "Authorization | None"
    shares: "Deferred[Sharing]"
    clock: Clock

    def handle(self, context: ConnectionContext, body: memoryview) -> bytes:
        group_id = _group_asked_for(body)
        may_topic = self._topics_allowed(context, group_id)
        if isinstance(may_topic, ErrorCode):
            return _encoded({"error_code": int(may_topic)})
        if (sharing := self.shares.made) is None:
            return _encoded({"partitions": [], "groups": [], "left_out": 0})
        partitions = sharing.partitions
        partitions.settle()
        rows: list[Mapping[str, Any]] = []
        left_out = runs = 0
        now_ms = self.clock.now_ms()
        for shared in partitions.of_group(group_id):
            if not may_topic(shared.partition.topic):
                continue
            runs += len(shared.machine.runs)
            if len(rows) >= PARTITIONS_MAX or runs > RUNS_MAX:
                left_out += 1
            else:
                rows.append(_partition(shared, now_ms))
        groups = [_group(name, counts) for name, counts in partitions.counted(group_id)]
        return _encoded(
            {
                "partitions": rows,
                "groups": groups[:GROUPS_MAX],
                "left_out": left_out + max(0, len(groups) - GROUPS_MAX),
            }
        )

    def _topics_allowed(
        self, context: ConnectionContext, group_id: str | None
    ) -> Callable[[str], bool] | ErrorCode:
        """Of which topics the asker is told, or what is refused as a whole."""
        authorization = self.authorization
        if authorization is None:
            return lambda topic: True
        if group_id is None:
            if authorization.allows(context, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
                return lambda topic: True
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if not authorization.allows(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return lambda topic: authorization.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


def _group_asked_for(body: memoryview) -> str | None:
    """The group of a request; None for all."""
    if len(body) > BODY_BYTES_MAX:
        raise MalformedRequest(f"a question of {len(body)} bytes")
    try:
        asked = json.loads(bytes(body))
    except (ValueError, RecursionError) as fault:
        raise MalformedRequest(f"no JSON: {fault}") from fault
    group_id = asked.get("group") if isinstance(asked, dict) else ""
    if group_id is not None and not (isinstance(group_id, str) and group_id):
        raise MalformedRequest("no question about share groups")
    return group_id


def _partition(shared: "SharedPartition", now_ms: int) -> Mapping[str, Any]:
    machine = shared.machine
    found = in_flight(machine.runs)
    members = sorted(found.members.items(), key=lambda item: (-item[1], item[0]))
    ends_ms = found.lock_ends_ms
    return {
        "group": machine.key.group_id,
        "topic": shared.partition.topic,
        "partition": shared.partition.index,
        "phase": machine.phase.value,
        "start_offset": machine.runs.start,
        "next_offset": machine.runs.end,
        "acquired": found.acquired,
        "available": found.available,
        "resting": found.resting,
        "archiving": found.archiving,
        "archived": found.archived,
        "acknowledged": found.acknowledged,
        "deliveries": found.deliveries,
        "members": dict(members[:MEMBERS_MAX]),
        "lock_ends_in_ms": None if ends_ms is None else max(0, ends_ms - now_ms),
        "records_max": machine.settings.partition_max_record_locks,
        "delivery_count_limit": machine.settings.delivery_count_limit,
        "dead_letter_topic": machine.settings.dead_letter_topic,
    }


def _group(group_id: str, counts: "ShareGroupCounts") -> Mapping[str, Any]:
    return {
        "group": group_id,
        "deliveries": dict(sorted(counts.deliveries.items())),
        "acknowledgements": {
            AcknowledgeType(kind).name.lower(): count
            for kind, count in sorted(counts.acknowledgements.items())
        },
        "lock_expiries": counts.lock_expiries,
        "dead_letters": counts.dead_letters,
        "dead_letters_given_up": counts.dead_letters_given_up,
    }


def _encoded(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
