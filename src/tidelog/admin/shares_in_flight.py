"""What share groups have in flight, as the leaders of the partitions tell it
(`broker/requests/handlers/describe_share_partitions`).

No Kafka protocol has a question for it, and a broker that does not know an API closes the connection. So
leaders are asked only where a group has a setting of ours. Without it, without the rights, or while nobody
fetches, nothing is told.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.admin.configs import ConfigResource
from tidelog.admin.share_groups import SharePartitionOffsets
from tidelog.admin.snapshot import TopicPartitionKey
from tidelog.client.api_keys import DESCRIBE_CONFIGS
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, Refusal
from tidelog.client.link import Link
from tidelog.protocol.apis import DESCRIBE_SHARE_PARTITIONS

#: the phase of a share partition whose leader knows where it is
ACTIVE = "Active"
SETTING_OF_TIDELOG = "tidelog.share.retry.backoff.ms"


@dataclass(frozen=True, slots=True)
class PartitionInFlight:
    """The records of one partition between the start offset and the first that was never fetched."""

    group: str
    topic: str
    partition: int
    start: int
    next: int
    #: members have them
    acquired: int
    #: members may have them
    available: int
    #: of those, kept back by the backoff of retries
    resting: int
    #: their dead letters are being written
    archiving: int
    archived: int
    acknowledged: int
    #: of what is not done with: records by the number of their deliveries
    deliveries: dict[int, int]
    #: records by the member that has them
    members: dict[str, int]
    lock_ends_in_ms: int | None
    records_max: int
    delivery_count_limit: int
    dead_letter_topic: str | None

    def lag(self, end: int) -> int:
        """What is still to be dealt with, up to the end of the log."""
        return max(0, end - self.start - self.archived - self.acknowledged)

    @property
    def deliveries_text(self) -> str:
        """`1:40 3:2`: 40 records were delivered once, two three times."""
        return " ".join(f"{count}:{records}" for count, records in self.deliveries.items())


@dataclass(slots=True)
class GroupCounts:
    """What brokers have counted of a group since they started, in records."""

    deliveries: dict[int, int] = field(default_factory=dict)
    #: by type: gap, accept, release, reject, renew
    acknowledgements: dict[str, int] = field(default_factory=dict)
    lock_expiries: int = 0
    dead_letters: int = 0
    dead_letters_given_up: int = 0

    def add(self, row: dict[str, Any]) -> None:
        for count, records in row["deliveries"].items():
            self.deliveries[int(count)] = self.deliveries.get(int(count), 0) + int(records)
        for kind, records in row["acknowledgements"].items():
            self.acknowledgements[str(kind)] = self.acknowledgements.get(str(kind), 0) + int(records)
        self.lock_expiries += int(row["lock_expiries"])
        self.dead_letters += int(row["dead_letters"])
        self.dead_letters_given_up += int(row["dead_letters_given_up"])


@dataclass(slots=True)
class SharesInFlight:
    """What the leaders told, of one group or of all."""

    partitions: dict[tuple[str, str, int], PartitionInFlight] = field(default_factory=dict)
    groups: dict[str, GroupCounts] = field(default_factory=dict)

    def adopt(self, told: dict[str, Any]) -> None:
        for row in told["partitions"]:
            if row["phase"] != ACTIVE:
                continue
            found = _partition(row)
            self.partitions[found.group, found.topic, found.partition] = found
        for row in told["groups"]:
            self.groups.setdefault(str(row["group"]), GroupCounts()).add(row)


def shares_in_flight(
    admin: ClusterAdmin, group_id: str, partitions: Iterable[TopicPartitionKey]
) -> SharesInFlight | None:
    """What a group has in flight in these partitions; None where nobody may tell us."""
    topics = sorted({topic for topic, _ in partitions})
    if not topics:
        return SharesInFlight()

    def ask(cluster: Cluster) -> SharesInFlight | None:
        if not _is_told(cluster, group_id):
            return None
        leaders = {row.leader for topic in cluster.topics(topics).values() for row in topic.partitions}
        found = SharesInFlight()
        for leader in sorted(leader for leader in leaders if leader >= 0):
            found.adopt(ask_leader(cluster.link_to(leader), group_id))
        return found

    try:
        return admin.once(ask)
    except ClientFault:
        return None


def completed(
    rows: Iterable[SharePartitionOffsets], group_id: str, told: SharesInFlight | None
) -> list[SharePartitionOffsets]:
    """The same rows; a start that is not stored yet, before the first acknowledgement, is the leader's."""
    found = []
    for row in rows:
        flight = None if told is None else told.partitions.get((group_id, row.topic, row.partition))
        if row.start is None and row.latest is not None and flight is not None:
            row = replace(row, start=flight.start, lag=flight.lag(row.latest))
        found.append(row)
    return found


def all_in_flight(admin: ClusterAdmin, brokers: Iterable[int], some_group: str) -> SharesInFlight | None:
    """What all groups have in flight, for one who may describe the cluster; None where nobody may tell us."""

    def ask(cluster: Cluster) -> SharesInFlight | None:
        if not _is_told(cluster, some_group):
            return None
        found = SharesInFlight()
        for broker in brokers:
            found.adopt(ask_leader(cluster.link_to(broker), None))
        return found

    try:
        return admin.once(ask)
    except ClientFault:
        return None


def _is_told(cluster: Cluster, group_id: str) -> bool:
    """Whether the group has a setting that only our brokers have."""
    wanted = {
        "resource_type": int(ConfigResource.GROUP),
        "resource_name": group_id,
        "configuration_keys": (SETTING_OF_TIDELOG,),
    }
    (row,) = (
        cluster.any_link().request(DESCRIBE_CONFIGS, {"resources": [wanted]}, lowest=1, highest=4).results
    )
    check(row, f"the settings of group {group_id!r}")
    return any(entry.name == SETTING_OF_TIDELOG for entry in row.configs)


def ask_leader(link: Link, group_id: str | None) -> dict[str, Any]:
    """What a broker of ours tells of a group, or of all; raises ClientFault."""
    body = json.dumps({} if group_id is None else {"group": group_id}).encode()
    try:
        told = json.loads(bytes(link.receive(link.send(DESCRIBE_SHARE_PARTITIONS, 0, body))))
    except ValueError as fault:
        raise ClientFault(f"what is told of share groups cannot be read: {fault}") from fault
    if told.get("error_code"):
        raise Refusal(int(told["error_code"]), "share groups in flight")
    found: dict[str, Any] = told
    return found


def _partition(row: dict[str, Any]) -> PartitionInFlight:
    return PartitionInFlight(
        str(row["group"]),
        str(row["topic"]),
        int(row["partition"]),
        int(row["start_offset"]),
        int(row["next_offset"]),
        int(row["acquired"]),
        int(row["available"]),
        int(row["resting"]),
        int(row["archiving"]),
        int(row["archived"]),
        int(row["acknowledged"]),
        {int(count): int(records) for count, records in row["deliveries"].items()},
        {str(member): int(records) for member, records in row["members"].items()},
        row["lock_ends_in_ms"],
        int(row["records_max"]),
        int(row["delivery_count_limit"]),
        row["dead_letter_topic"],
    )
