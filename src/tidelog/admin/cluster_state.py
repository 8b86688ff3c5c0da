"""A cluster at one moment: its brokers, alive and dead, its partitions, its controllers.

From Metadata, and where brokers have them DescribeCluster v2 (dead brokers, KIP-1073) and DescribeQuorum (the
controllers' quorum). Any Kafka cluster will do; what it does not offer is simply not known.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.faults import AdminFault
from tidelog.admin.reassignment_plan import Assignment
from tidelog.client.api_keys import DESCRIBE_CLUSTER, DESCRIBE_QUORUM, METADATA
from tidelog.client.cluster import Cluster
from tidelog.client.link import Link
from tidelog.model.addresses import address_text

ENDPOINT_TYPE_BROKERS = 1
FENCED_SINCE_VERSION = 2
QUORUM_TOPIC = "__cluster_metadata"


class BrokerState(NamedTuple):
    """One broker; the address of a dead one may not be known."""

    id: int
    address: str | None
    rack: str | None
    alive: bool


class PartitionState(NamedTuple):
    """One partition; the epoch is None where it cannot be known.

    `offline_replicas` are those of dead brokers, and those whose log directory is not there or has failed.
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()

    @property
    def offline(self) -> bool:
        return self.leader < 0

    @property
    def under_replicated(self) -> bool:
        return not set(self.replicas) <= set(self.isr)

    @property
    def led_by_preferred(self) -> bool:
        return self.leader == self.replicas[0]

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.topic, self.partition, self.replicas)


@dataclass(frozen=True, slots=True)
class Quorum:
    """The leader of the metadata and who follows it."""

    leader: int
    epoch: int
    high_watermark: int
    voters: tuple[int, ...]
    observers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at one moment."""

    cluster_id: str | None
    controller: int | None
    brokers: tuple[BrokerState, ...]
    partitions: tuple[PartitionState, ...]
    quorum: Quorum | None = None

    @property
    def alive_racks(self) -> dict[int, str | None]:
        """The rack of every broker that lives."""
        return {broker.id: broker.rack for broker in self.brokers if broker.alive}

    @property
    def assignments(self) -> list[Assignment]:
        return [partition.assignment for partition in self.partitions]

    @property
    def offline(self) -> tuple[PartitionState, ...]:
        return tuple(partition for partition in self.partitions if partition.offline)

    @property
    def under_replicated(self) -> tuple[PartitionState, ...]:
        return tuple(partition for partition in self.partitions if partition.under_replicated)

    @property
    def well(self) -> bool:
        """Every broker lives, every partition has a leader, every replica is in sync, someone controls."""
        return (
            self.controller is not None
            and all(broker.alive for broker in self.brokers)
            and not self.offline
            and not self.under_replicated
        )

    def of_topics(self, names: tuple[str, ...]) -> list[PartitionState]:
        """The partitions of these topics; a name that is not there is an error."""
        known = {partition.topic for partition in self.partitions}
        missing = [name for name in names if name not in known]
        if missing:
            raise AdminFault(
                f"there is no topic {', '.join(missing)}", "'tidelog topic list' shows the topics"
            )
        return [partition for partition in self.partitions if partition.topic in names]

    def partition(self, topic: str, number: int) -> PartitionState:
        for found in self.of_topics((topic,)):
            if found.partition == number:
                return found
        raise AdminFault(
            f"topic {topic} has no partition {number}",
            f"'tidelog topic describe {topic}' shows the partitions",
        )


def cluster_state(admin: ClusterAdmin) -> ClusterState:
    """Everything, as it is now."""
    return admin.asked("the cluster cannot be described", _state)


def _state(cluster: Cluster) -> ClusterState:
    metadata = ask_metadata(cluster.any_link())
    partitions = tuple(
        PartitionState(
            str(topic.name),
            int(row.partition_index),
            int(row.leader_id),
            int(row.leader_epoch) if hasattr(row, "leader_epoch") else None,
            tuple(int(number) for number in row.replica_nodes),
            tuple(int(number) for number in row.isr_nodes),
            tuple(int(number) for number in getattr(row, "offline_replicas", ())),
        )
        for topic in sorted(metadata.topics, key=lambda topic: str(topic.name))
        for row in sorted(topic.partitions, key=lambda row: int(row.partition_index))
    )
    return ClusterState(
        metadata.cluster_id,
        int(metadata.controller_id) if metadata.controller_id >= 0 else None,
        known_brokers(cluster.any_link(), metadata),
        partitions,
        _quorum(cluster.any_link()),
    )


def ask_metadata(link: Link, topics: tuple[Any, ...] | None = None) -> Any:
    """What a broker knows of all topics, or of some; asking creates none."""
    fields = {"topics": topics, "allow_auto_topic_creation": False}
    return link.request(METADATA, fields, lowest=4, highest=12)


def known_brokers(link: Link, metadata: Any) -> tuple[BrokerState, ...]:
    """Those that live, those the cluster says are fenced, those known only from replicas."""
    found = {
        int(broker): BrokerState(int(broker), None, None, False)
        for topic in metadata.topics
        for partition in topic.partitions
        for broker in partition.replica_nodes
    }
    offered = link.offers(DESCRIBE_CLUSTER)
    if offered is not None and offered[1] >= FENCED_SINCE_VERSION:
        fields = {"endpoint_type": ENDPOINT_TYPE_BROKERS, "include_fenced_brokers": True}
        version = FENCED_SINCE_VERSION
        for row in link.request(DESCRIBE_CLUSTER, fields, lowest=version, highest=version).brokers:
            address = address_text(str(row.host), int(row.port)) if row.host else None
            found[int(row.broker_id)] = BrokerState(int(row.broker_id), address, row.rack, not row.is_fenced)
    for row in metadata.brokers:
        address = address_text(str(row.host), int(row.port))
        found[int(row.node_id)] = BrokerState(int(row.node_id), address, row.rack, True)
    return tuple(found[number] for number in sorted(found))


def _quorum(link: Link) -> Quorum | None:
    """Who decides about metadata; None where it is not told."""
    if link.offers(DESCRIBE_QUORUM) is None:
        return None
    fields = {"topics": [{"topic_name": QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]}
    answer = link.request(DESCRIBE_QUORUM, fields, highest=0)
    if answer.error_code or not answer.topics or not answer.topics[0].partitions:
        return None
    found = answer.topics[0].partitions[0]
    if found.error_code:
        return None
    return Quorum(
        int(found.leader_id),
        int(found.leader_epoch),
        int(found.high_watermark),
        tuple(sorted(int(voter.replica_id) for voter in found.current_voters)),
        tuple(sorted(int(observer.replica_id) for observer in found.observers)),
    )
