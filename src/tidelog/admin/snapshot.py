"""What the console knows of a cluster, as frozen values without any client object in them.

A `Snapshot` is what one poll saw. It is never changed: the next poll makes another one, and `events.changes`
tells the two apart.
"""

from dataclasses import dataclass, field
from functools import cached_property

from tidelog.model.addresses import address_text

NO_LEADER = -1
INTERNAL_PREFIX = "__"
TopicPartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker that is there."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return address_text(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as metadata tells of it."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def offline(self) -> bool:
        return self.leader == NO_LEADER

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def preferred(self) -> bool:
        """Whether the first replica leads, as placement meant it."""
        return bool(self.replicas) and self.leader == self.replicas[0]


@dataclass(frozen=True)
class TopicView:
    """A topic with its partitions, by number."""

    name: str
    partitions: tuple[PartitionView, ...]

    @property
    def internal(self) -> bool:
        return self.name.startswith(INTERNAL_PREFIX)

    @cached_property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @cached_property
    def under_replicated(self) -> int:
        return sum(partition.under_replicated for partition in self.partitions)

    @cached_property
    def offline(self) -> int:
        return sum(partition.offline for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group and the partitions it reads."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartitionKey, ...]
    target: tuple[TopicPartitionKey, ...] | None = None
    #: of the new protocols; behind the group's while it still gives partitions up
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group; members, assignor and coordinator are known once it was described."""

    id: str
    state: str
    type: str
    members: tuple[MemberView, ...] = ()
    assignor: str = ""
    coordinator: int | None = None
    described: bool = False
    epoch: int | None = None
    #: what its members speak among themselves: "consumer", "connect", …; known once it was listed
    protocol_type: str = ""

    @property
    def label(self) -> str:
        return group_label(self.id, self.type)


SPARK_PREFIXES = (
    "spark-kafka-source-",
    "spark-kafka-relation-",
    "spark-executor-",
    "tidelog-spark-",
    "tidelog-pipeline-",
)


def group_label(group_id: str, group_type: str) -> str:
    """What kind of group this is, for people: its protocol, or the engine that made it."""
    if group_id.startswith(SPARK_PREFIXES):
        return "spark"
    return {"consumer": "new protocol", "share": "share", "classic": "classic"}.get(group_type, group_type)


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment."""

    cluster_id: str
    controller: int
    brokers: dict[int, BrokerView]
    topics: dict[str, TopicView]
    groups: dict[str, GroupView]
    taken_at: float
    #: what could not be read this time, in words
    problems: tuple[str, ...] = field(default=())

    @cached_property
    def partitions_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    @cached_property
    def under_replicated(self) -> int:
        return sum(topic.under_replicated for topic in self.topics.values())

    @cached_property
    def offline(self) -> int:
        return sum(topic.offline for topic in self.topics.values())

    @cached_property
    def not_preferred(self) -> int:
        """Partitions that another broker leads than placement meant."""
        return sum(
            not partition.preferred for topic in self.topics.values() for partition in topic.partitions
        )

    @cached_property
    def missing_brokers(self) -> tuple[int, ...]:
        """Brokers that hold replicas but are not there."""
        named = {
            replica
            for topic in self.topics.values()
            for partition in topic.partitions
            for replica in partition.replicas
        }
        return tuple(sorted(named - set(self.brokers)))

    @cached_property
    def broker_load(self) -> dict[int, tuple[int, int]]:
        """How many partitions each broker leads, and how many replicas it holds."""
        leads: dict[int, int] = {}
        holds: dict[int, int] = {}
        for topic in self.topics.values():
            for partition in topic.partitions:
                leads[partition.leader] = leads.get(partition.leader, 0) + 1
                for replica in partition.replicas:
                    holds[replica] = holds.get(replica, 0) + 1
        known = set(self.brokers) | set(self.missing_brokers)
        return {broker: (leads.get(broker, 0), holds.get(broker, 0)) for broker in sorted(known)}

    @property
    def healthy(self) -> bool:
        return not (self.under_replicated or self.offline or self.missing_brokers)
