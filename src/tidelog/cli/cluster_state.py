"""What the `tidelog cluster` commands know of a cluster, and the one who asks it.

Brokers, topics and partitions come from confluent-kafka, so they work over TLS and SASL too. What librdkafka
does not offer is spoken directly where the connection is plaintext and the broker has the API: leader epochs
(Metadata), dead brokers (DescribeCluster v2, KIP-1073), the controllers' quorum (DescribeQuorum). Any Kafka
cluster will do; what it does not offer is simply not known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tidelog.cli.connection import Connection
from tidelog.cli.errors import CommandError, explained
from tidelog.cli.reassignment_plan import Assignment
from tidelog.cli.wire import call
from tidelog.model.addresses import address_text

NO_LEADER = -1
METADATA = 3
DESCRIBE_QUORUM = 55
DESCRIBE_CLUSTER = 60
ENDPOINT_TYPE_BROKERS = 1
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
            raise CommandError(
                f"there is no topic {', '.join(missing)}", "'tidelog topic list' shows the topics"
            )
        return [partition for partition in self.partitions if partition.topic in names]

    def partition(self, topic: str, number: int) -> PartitionState:
        for found in self.of_topics((topic,)):
            if found.partition == number:
                return found
        raise CommandError(
            f"topic {topic} has no partition {number}",
            f"'tidelog topic describe {topic}' shows the partitions",
        )


class ClusterAdmin:
    """Asks a cluster, through confluent-kafka and directly."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.admin = connection.admin()

    @cached_property
    def address(self) -> str:
        """The broker that direct requests go to: one that the cluster says is alive."""
        found = self.connection.metadata(self.admin).brokers
        if not found:
            raise CommandError("the cluster names no broker", "check 'tidelog cluster status'")
        broker = found[min(found)]
        return address_text(str(broker.host), broker.port)

    @cached_property
    def _versions(self) -> dict[int, tuple[int, int]]:
        from kio.schema.api_versions.v0.request import ApiVersionsRequest
        from kio.schema.api_versions.v0.response import ApiVersionsResponse

        answer = self.call(ApiVersionsRequest(), ApiVersionsResponse)
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def offers(self, api_key: int, version: int) -> bool:
        """True if the broker has this version of an API."""
        low, high = self._versions.get(api_key, (0, -1))
        return low <= version <= high

    def require(self, api_key: int, version: int, what: str) -> None:
        """Refuse with a sentence what the cluster does not offer."""
        if not self.offers(api_key, version):
            raise CommandError(
                f"the cluster does not offer {what} (API {api_key} version {version})",
                "its brokers are older than this: upgrade them, or use the tools that came with them",
            )

    def call(self, request: Any, response: type[Any]) -> Any:
        """Send one request to a live broker and return the answer."""
        return call(self.connection, self.address, request, response)

    def state(self) -> ClusterState:
        """Everything, as it is now."""
        known = self.connection.metadata(self.admin)
        with explained("the cluster cannot be described"):
            described = self.connection.outcome(
                self.admin.describe_cluster(request_timeout=self.connection.timeout_seconds)
            )
        alive = {
            node.id: BrokerState(node.id, address_text(node.host, node.port), node.rack, True)
            for node in described.nodes
        }
        details = self._details() if self.offers(METADATA, 9) else {}
        partitions = tuple(
            PartitionState(
                name,
                number,
                partition.leader,
                details.get((name, number), (None, ()))[0],
                tuple(partition.replicas),
                tuple(partition.isrs),
                details.get((name, number), (None, ()))[1],
            )
            for name, topic in sorted(known.topics.items())
            for number, partition in sorted(topic.partitions.items())
        )
        brokers = self._fenced(partitions)
        return ClusterState(
            described.cluster_id,
            described.controller.id if described.controller is not None else None,
            tuple(sorted({**brokers, **alive}.values())),
            partitions,
            self._quorum() if self.offers(DESCRIBE_QUORUM, 0) else None,
        )

    @staticmethod
    def _dead_brokers(partitions: tuple[PartitionState, ...]) -> dict[int, BrokerState]:
        """Brokers that hold replicas; those that live replace their entries."""
        holders = {broker for partition in partitions for broker in partition.replicas}
        return {broker: BrokerState(broker, None, None, False) for broker in holders}

    def _fenced(self, partitions: tuple[PartitionState, ...]) -> dict[int, BrokerState]:
        found = self._dead_brokers(partitions)
        if not self.offers(DESCRIBE_CLUSTER, 2):
            return found
        from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
        from kio.schema.describe_cluster.v2.response import DescribeClusterResponse

        make: Callable[..., Any] = DescribeClusterRequest
        request = make(
            include_cluster_authorized_operations=False,
            endpoint_type=ENDPOINT_TYPE_BROKERS,
            include_fenced_brokers=True,
        )
        for broker in self.call(request, DescribeClusterResponse).brokers:
            address = address_text(str(broker.host), broker.port) if broker.host else None
            found[broker.broker_id] = BrokerState(
                broker.broker_id, address, broker.rack, not broker.is_fenced
            )
        return found

    def _details(self) -> dict[tuple[str, int], tuple[int, tuple[int, ...]]]:
        """The leader epochs and the replicas that are offline, which librdkafka does not tell."""
        from kio.schema.metadata.v9.request import MetadataRequest
        from kio.schema.metadata.v9.response import MetadataResponse

        request = MetadataRequest(
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        return {
            (topic.name, partition.partition_index): (
                partition.leader_epoch,
                tuple(partition.offline_replicas),
            )
            for topic in self.call(request, MetadataResponse).topics
            for partition in topic.partitions
        }

    def _quorum(self) -> Quorum | None:
        from kio.schema.describe_quorum.v0.request import DescribeQuorumRequest, PartitionData, TopicData
        from kio.schema.describe_quorum.v0.response import DescribeQuorumResponse

        partition = PartitionData(partition_index=0)  # type: ignore[arg-type]
        topic = TopicData(topic_name=QUORUM_TOPIC, partitions=(partition,))  # type: ignore[arg-type]
        answer = self.call(DescribeQuorumRequest(topics=(topic,)), DescribeQuorumResponse)
        if answer.error_code.value != 0 or not answer.topics or not answer.topics[0].partitions:
            return None
        found = answer.topics[0].partitions[0]
        if found.error_code.value != 0:
            return None
        return Quorum(
            found.leader_id,
            found.leader_epoch,
            found.high_watermark,
            tuple(sorted(voter.replica_id for voter in found.current_voters)),
            tuple(sorted(observer.replica_id for observer in found.observers)),
        )
