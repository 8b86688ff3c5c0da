"""The cluster as one immutable value: what all metadata records so far add up to.

`image.apply(records)` returns the next image and copies only the mappings that change, so that a change costs
the number of topics at most, never the number of partitions. Whoever holds an image may keep it: it never
changes. `version` grows by one with every apply; answers made from an image can be cached under it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from tidelog.model.acls import AclEntry, AclsRecord, ResourcePattern
from tidelog.model.client_quotas import QuotaEntity, QuotasRecord, QuotaValues
from tidelog.model.credentials import DelegationToken, ScramCredential, TokenRecord, UserRecord
from tidelog.model.identifiers import (
    INTERNAL_TOPICS,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_EPOCH,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
)
from tidelog.model.metadata import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerRecord,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    Endpoint,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    ReplicaLogInfo,
    TopicRecord,
)

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker and where clients reach it, by listener name; the fields are the record's."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    epoch: int = 0
    incarnation: str = ""
    alive: bool = True
    shutting_down: bool = False
    directories: tuple[str, ...] = ()
    offline_directories: int = 0

    @property
    def active(self) -> bool:
        """Whether the broker may lead partitions and join ISRs: it is alive and means to stay."""
        return self.alive and not self.shutting_down

    def has_online(self, directory: str) -> bool:
        """Whether a replica that the cluster knows to be in this directory can be reached there."""
        return is_online(directory, self.directories)


def is_online(directory: str, directories: Collection[str]) -> bool:
    """Whether a directory is among the online ones of a broker, or the cluster cannot know better."""
    if directory in directories:
        return True
    if directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
        return True
    return not directories and directory != LOST_DIRECTORY


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """Who holds a partition, who leads it and who is in sync; the fields are the record's."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    directories: tuple[str, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    unclean_leader_epoch: int = NO_EPOCH
    replica_logs: tuple[tuple[int, ReplicaLogInfo], ...] = ()

    def directory_of(self, broker_id: int) -> str:
        """The id of the log directory in which one of the replicas is."""
        if not self.directories:
            return MIGRATING_DIRECTORY
        return self.directories[self.replicas.index(broker_id)]

    def counts_on(self, broker_id: int) -> bool:
        """Whether a replica's log may be what the partition needs: it must not begin anew."""
        if broker_id in self.isr or broker_id in self.elr:
            return True
        return self.leader == NO_LEADER and broker_id in self.last_known_elr

    @property
    def reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas that remain when a reassignment has ended; without one, all of them."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic: its id, its partitions by index, and what was set for it."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...] = ()
    configs: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def __repr__(self) -> str:
        return f"<TopicImage {self.name} {self.topic_id} partitions={len(self.partitions)}>"


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All of the metadata at one moment."""

    version: int = 0
    cluster_id: str = ""
    controller_id: int = NO_LEADER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names_by_id: Mapping[UUID, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    partition_count: int = 0
    #: the brokers that are alive, by id; follows from `brokers`
    alive_brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    #: SCRAM credentials by user and mechanism
    users: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict, repr=False)
    #: delegation tokens by id
    tokens: Mapping[str, DelegationToken] = field(default_factory=dict, repr=False)
    acls: Mapping[ResourcePattern, frozenset[AclEntry]] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, QuotaValues] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<ClusterImage version={self.version} brokers={len(self.alive_brokers)}/{len(self.brokers)} "
            f"topics={len(self.topics)} partitions={self.partition_count}>"
        )

    def name_of(self, topic: str | UUID) -> str | None:
        """The name of a topic that is given by its name or id; None for an id that nobody has."""
        return topic if isinstance(topic, str) else self.topic_names_by_id.get(topic)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def apply(self, records: Iterable[MetadataRecord]) -> "ClusterImage":
        """The image after `records`, in their order."""
        builder = _Builder(self)
        for record in records:
            builder.add(record)
        return builder.build()

    def check_invariants(self) -> None:
        """Assert what must hold of every image; for tests and for load."""
        assert len(self.topic_names_by_id) == len(self.topics)
        assert self.partition_count == sum(len(topic.partitions) for topic in self.topics.values())
        assert self.alive_brokers == _alive(self.brokers)
        for name, topic in self.topics.items():
            assert topic.name == name and self.topic_names_by_id[topic.topic_id] == name
            for partition in topic.partitions:
                _check_partition(partition)
                leader = self.brokers.get(partition.leader)
                if leader is not None:
                    assert leader.alive, f"{name} is led by broker {leader.id}, which is dead"
                    directory = partition.directory_of(leader.id)
                    assert leader.has_online(directory), f"{name} is led from {directory}, which is offline"


def _check_partition(partition: PartitionImage) -> None:
    replicas = set(partition.replicas)
    assert len(replicas) == len(partition.replicas) > 0
    assert len(set(partition.isr)) == len(partition.isr) and replicas.issuperset(partition.isr)
    assert partition.leader == NO_LEADER or partition.leader in partition.isr
    if partition.adding or partition.removing:
        assert replicas.issuperset(partition.adding) and replicas.issuperset(partition.removing)
        assert not set(partition.adding) & set(partition.removing)
        assert len(partition.removing) < len(partition.replicas), "a reassignment leaves no replica"
    assert len(partition.directories) in (0, len(partition.replicas))
    groups = (*partition.isr, *partition.elr, *partition.last_known_elr)
    assert len(set(groups)) == len(groups) and replicas.issuperset(groups)
    assert groups, "nobody is left who could lead"
    assert partition.unclean_leader_epoch <= partition.leader_epoch
    reported = [broker_id for broker_id, _ in partition.replica_logs]
    assert len(set(reported)) == len(reported) and replicas.issuperset(reported)
    assert not reported or partition.leader == NO_LEADER


class _Builder:
    """Gathers the parts that change; a mapping is copied when its first change comes."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._cluster_id = image.cluster_id
        self._controller_id = image.controller_id
        self._controller_epoch = image.controller_epoch
        self._next_producer_id = image.next_producer_id
        self._partition_count = image.partition_count
        self._brokers: dict[int, BrokerImage] | None = None
        self._topics: dict[str, TopicImage] | None = None
        self._names_by_id: dict[UUID, str] | None = None
        self._broker_configs: dict[str, Mapping[str, str]] | None = None
        self._group_configs: dict[str, Mapping[str, str]] | None = None
        self._client_metrics: dict[str, Mapping[str, str]] | None = None
        self._users: dict[str, Mapping[str, ScramCredential]] | None = None
        self._tokens: dict[str, DelegationToken] | None = None
        self._acls: dict[ResourcePattern, frozenset[AclEntry]] | None = None
        self._client_quotas: dict[QuotaEntity, QuotaValues] | None = None
        # Partitions of the topics touched here, so that ten thousand of them are not ten thousand tuples.
        self._partitions: dict[str, list[PartitionImage]] = {}

    def add(self, record: MetadataRecord) -> None:
        match record:
            case PartitionRecord():
                self._add_partition(record)
            case TopicRecord():
                topics, names = self._change_topics()
                assert record.name not in topics, f"topic {record.name} exists already"
                topics[record.name] = TopicImage(record.name, record.topic_id)
                names[record.topic_id] = record.name
            case RemoveTopicRecord():
                topics, names = self._change_topics()
                self._partition_count -= len(self._partitions_of(record.name))
                del self._partitions[record.name]
                del topics[record.name]
                del names[record.topic_id]
            case ConfigRecord():
                self._add_configs(record)
            case BrokerRecord():
                self._change_brokers()[record.broker_id] = _broker_image(record)
            case RemoveBrokerRecord():
                self._change_brokers().pop(record.broker_id, None)
            case ClusterRecord():
                self._cluster_id = record.cluster_id
            case ControllerRecord():
                self._controller_id, self._controller_epoch = record.broker_id, record.epoch
            case ProducerIdsRecord():
                self._next_producer_id = record.next_producer_id
            case UserRecord():
                self._add_user(record)
            case TokenRecord():
                self._add_token(record)
            case AclsRecord():
                self._add_acls(record)
            case QuotasRecord():
                self._add_quotas(record)

    def _add_user(self, record: UserRecord) -> None:
        if self._users is None:
            self._users = dict(self._image.users)
        if record.credentials:
            self._users[record.name] = MappingProxyType(dict(record.credentials))
        else:
            self._users.pop(record.name, None)

    def _add_acls(self, record: AclsRecord) -> None:
        if self._acls is None:
            self._acls = dict(self._image.acls)
        if record.entries:
            self._acls[record.pattern] = record.entries
        else:
            self._acls.pop(record.pattern, None)

    def _add_quotas(self, record: QuotasRecord) -> None:
        if self._client_quotas is None:
            self._client_quotas = dict(self._image.client_quotas)
        if record.values:
            self._client_quotas[record.entity] = MappingProxyType(dict(record.values))
        else:
            self._client_quotas.pop(record.entity, None)

    def _add_token(self, record: TokenRecord) -> None:
        if self._tokens is None:
            self._tokens = dict(self._image.tokens)
        if record.token is not None:
            self._tokens[record.token_id] = record.token
        else:
            self._tokens.pop(record.token_id, None)

    def _add_partition(self, record: PartitionRecord) -> None:
        partitions = self._partitions_of(record.topic)
        partition = PartitionImage(
            record.leader,
            record.leader_epoch,
            record.replicas,
            record.isr,
            record.partition_epoch,
            record.adding,
            record.removing,
            record.directories,
            record.elr,
            record.last_known_elr,
            record.unclean_leader_epoch,
            record.replica_logs,
        )
        if record.index == len(partitions):
            partitions.append(partition)
            self._partition_count += 1
        else:
            partitions[record.index] = partition

    def _partitions_of(self, topic: str) -> list[PartitionImage]:
        partitions = self._partitions.get(topic)
        if partitions is None:
            topics, _ = self._change_topics()
            partitions = self._partitions[topic] = list(topics[topic].partitions)
        return partitions

    def _add_configs(self, record: ConfigRecord) -> None:
        configs = MappingProxyType(dict(record.configs)) if record.configs else _NOTHING
        if record.resource == BROKER_RESOURCE:
            if self._broker_configs is None:
                self._broker_configs = dict(self._image.broker_configs)
            if record.configs:
                self._broker_configs[record.name] = configs
            else:
                self._broker_configs.pop(record.name, None)
            return
        if record.resource != TOPIC_RESOURCE:
            self._add_resource_configs(record, configs)
            return
        topics, _ = self._change_topics()
        topics[record.name] = replace(topics[record.name], configs=configs)

    def _add_resource_configs(self, record: ConfigRecord, configs: Mapping[str, str]) -> None:
        image = self._image
        if record.resource == GROUP_RESOURCE:
            if self._group_configs is None:
                self._group_configs = dict(image.group_configs)
            resources = self._group_configs
        else:
            assert record.resource == CLIENT_METRICS_RESOURCE, f"settings of {record.resource}"
            if self._client_metrics is None:
                self._client_metrics = dict(image.client_metrics)
            resources = self._client_metrics
        if record.configs:
            resources[record.name] = configs
        else:
            resources.pop(record.name, None)

    def _change_topics(self) -> tuple[dict[str, TopicImage], dict[UUID, str]]:
        if self._topics is None or self._names_by_id is None:
            self._topics = dict(self._image.topics)
            self._names_by_id = dict(self._image.topic_names_by_id)
        return self._topics, self._names_by_id

    def _change_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._image.brokers)
        return self._brokers

    def build(self) -> ClusterImage:
        image = self._image
        topics = self._topics
        if topics is not None:
            for name, partitions in self._partitions.items():
                topics[name] = replace(topics[name], partitions=tuple(partitions))
        return ClusterImage(
            version=image.version + 1,
            cluster_id=self._cluster_id,
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            brokers=image.brokers if self._brokers is None else self._brokers,
            topics=image.topics if topics is None else topics,
            topic_names_by_id=image.topic_names_by_id if self._names_by_id is None else self._names_by_id,
            broker_configs=image.broker_configs if self._broker_configs is None else self._broker_configs,
            group_configs=image.group_configs if self._group_configs is None else self._group_configs,
            client_metrics=image.client_metrics if self._client_metrics is None else self._client_metrics,
            next_producer_id=self._next_producer_id,
            partition_count=self._partition_count,
            alive_brokers=image.alive_brokers if self._brokers is None else _alive(self._brokers),
            users=image.users if self._users is None else self._users,
            tokens=image.tokens if self._tokens is None else self._tokens,
            acls=image.acls if self._acls is None else self._acls,
            client_quotas=image.client_quotas if self._client_quotas is None else self._client_quotas,
        )


def _broker_image(record: BrokerRecord) -> BrokerImage:
    return BrokerImage(
        record.broker_id,
        MappingProxyType(dict(record.endpoints)),
        record.rack,
        record.epoch,
        record.incarnation,
        record.alive,
        record.shutting_down,
        directories=record.directories,
        offline_directories=record.offline_directories,
    )


def _alive(brokers: Mapping[int, BrokerImage]) -> dict[int, BrokerImage]:
    return {broker_id: broker for broker_id, broker in brokers.items() if broker.alive}
