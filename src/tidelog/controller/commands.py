"""What the controller can be asked to do, and what it answers.

A command carries items; the answer has one result for each item, in the same order: what was done, or
`Refused` with Kafka's error code. One refused item does not stop the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from tidelog.model.acls import AclBinding, AclFilter
from tidelog.model.credentials import DelegationToken, ScramCredential
from tidelog.model.errors import Refused
from tidelog.model.identifiers import TopicPartition
from tidelog.model.image import PartitionImage
from tidelog.model.metadata import Endpoint, MetadataRecord

# The value that asks for the broker's default, as in the protocol.
USE_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create; `assignments` pairs partition indexes with the brokers that shall hold them."""

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopics:
    topics: tuple[TopicSpec, ...]
    validate_only: bool = False

    @property
    def item_count(self) -> int:
        return len(self.topics)


@dataclass(frozen=True, slots=True)
class TopicReference:
    """A topic by its name or by its id."""

    name: str | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    topics: tuple[TopicReference, ...]

    @property
    def item_count(self) -> int:
        return len(self.topics)


@dataclass(frozen=True, slots=True)
class PartitionsSpec:
    """The new total of partitions of a topic, and the brokers of each new one if the caller chose them."""

    name: str
    partition_count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    topics: tuple[PartitionsSpec, ...]
    validate_only: bool = False

    @property
    def item_count(self) -> int:
        return len(self.topics)


class ConfigResourceType(IntEnum):
    """What settings belong to; the number is the protocol's."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """How one setting changes; the number is the protocol's."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one setting; only DELETE may come without a value."""

    name: str
    operation: ConfigOperation
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """The changes of one resource; with `replace_all`, whatever is not named is unset."""

    type: ConfigResourceType
    name: str
    changes: tuple[ConfigChange, ...]
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    resources: tuple[ConfigChanges, ...]
    validate_only: bool = False

    @property
    def item_count(self) -> int:
        return len(self.resources)


@dataclass(frozen=True, slots=True)
class FormCluster:
    """Give a new cluster its id, chosen at random unless given; an old cluster keeps its own."""

    cluster_id: str | None = None

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Reserve a block of producer ids for a broker to hand out."""

    broker_id: int

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    """The log directory, by its id, that holds a replica of the broker that says so; LOST if none does.

    `doubtful`: its log may lack records that it had.
    """

    topic_id: UUID
    partition: int
    directory: str
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """What a broker says of itself while it lives: one life of its process, its addresses, its directories.

    `placements` are the replicas that it found elsewhere than the cluster believed, and those whose logs it
    found shorter than they were. `unclean_shutdown` says that all its logs may have lost their ends before
    this life began: neither was it stopped cleanly, nor did its machine go on and keep what was not on the
    disk yet.
    """

    broker_id: int
    incarnation: str
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    directories: tuple[str, ...] = ()
    offline_directories: int = 0
    placements: tuple[ReplicaPlacement, ...] = ()
    unclean_shutdown: bool = False
    #: directories of which somebody says that they are lost for good (`tidelog.lost.directories`)
    lost_directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """These brokers live now, and no others; new lives get an epoch of at least `sequence`."""

    live: tuple[LiveBroker, ...]
    sequence: int

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class AssignReplicas:
    """A broker tells in which of its directories replicas are; Kafka's AssignReplicasToDirs."""

    broker_id: int
    broker_epoch: int
    placements: tuple[ReplicaPlacement, ...]

    @property
    def item_count(self) -> int:
        return len(self.placements)


@dataclass(frozen=True, slots=True)
class FailDirectories:
    """Directories of a broker have failed; in Kafka a heartbeat tells so (`OfflineLogDirs`).

    `lost` are the replicas in there that the cluster does not know to be there.
    """

    broker_id: int
    broker_epoch: int
    directories: tuple[str, ...]
    lost: tuple[ReplicaPlacement, ...] = ()

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The ISR that a leader wants, and the epochs under which it came to want it.

    `isr_broker_epochs` are the epochs of the lives in which the leader saw the members of `isr`, in the same
    order, -1 where it does not know; empty when it knows none (KIP-903).
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    isr_broker_epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeIsr:
    """A leader asks to change the ISRs of partitions it leads; Kafka's AlterPartition."""

    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]

    @property
    def item_count(self) -> int:
        return len(self.changes)


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """Where the log of a replica ends, and the leader epoch of the last batch in it.

    `leader_epoch` is the partition's when the broker looked: it had no leader since then.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    last_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class ReportReplicaLogs:
    """A broker says how long its logs are of partitions that have no leader."""

    broker_id: int
    broker_epoch: int
    logs: tuple[ReplicaLog, ...]

    @property
    def item_count(self) -> int:
        return len(self.logs)


class ElectionType(IntEnum):
    """Which leader to elect; the number is the protocol's."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """Elect leaders for the partitions, or for all that need it; the one result tells of each.

    `patient`: of an unclean election those partitions are left as they are, for now, of which a replica that
    is there has not said how long its log is.
    """

    type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None
    patient: bool = False

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class ElectOffline:
    """Elect leaders for the partitions without one whose settings allow an unclean election.

    The one result names those that were elected, and those that wait for a replica's word about its log;
    `impatient` are those that have waited long enough.
    """

    impatient: tuple[TopicPartition, ...] = ()

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The replicas that a partition shall have, or None to take back what is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterReassignments:
    items: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True

    @property
    def item_count(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ShutDownBroker:
    """A broker is about to stop: its partitions find other leaders first, and it leaves the ISRs."""

    broker_id: int
    broker_epoch: int

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """A broker will not come back."""

    broker_id: int

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class RebalanceLeaders:
    """Give leadership back to preferred replicas where a broker leads too few of the partitions it should."""

    @property
    def item_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class CreateAcls:
    acls: tuple[AclBinding, ...]

    @property
    def item_count(self) -> int:
        return len(self.acls)


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    """Delete what any of the filters chooses; each has a result of its own."""

    filters: tuple[AclFilter, ...]

    @property
    def item_count(self) -> int:
        return len(self.filters)


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """The limits of one entity that change, in (type, name) pairs as the client gave them; None unsets."""

    entity: tuple[tuple[str, str | None], ...]
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class AlterClientQuotas:
    changes: tuple[QuotaChange, ...]
    validate_only: bool = False

    @property
    def item_count(self) -> int:
        return len(self.changes)


@dataclass(frozen=True, slots=True)
class CredentialChange:
    """A SCRAM credential that a user shall have under a mechanism, or None to remove the one there is."""

    user: str
    mechanism: str
    credential: ScramCredential | None = None


@dataclass(frozen=True, slots=True)
class AlterUsers:
    changes: tuple[CredentialChange, ...]

    @property
    def item_count(self) -> int:
        return len(self.changes)


@dataclass(frozen=True, slots=True)
class TokenChange:
    """A delegation token that is new, or another end of one that exists; neither: it goes away."""

    token_id: str
    created: DelegationToken | None = None
    expiry_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeTokens:
    changes: tuple[TokenChange, ...]

    @property
    def item_count(self) -> int:
        return len(self.changes)


Command = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | FormCluster
    | AllocateProducerIds
    | BrokersChanged
    | AssignReplicas
    | FailDirectories
    | ChangeIsr
    | ReportReplicaLogs
    | ElectLeaders
    | ElectOffline
    | AlterReassignments
    | ShutDownBroker
    | UnregisterBroker
    | RebalanceLeaders
    | CreateAcls
    | DeleteAcls
    | AlterClientQuotas
    | AlterUsers
    | ChangeTokens
)


@dataclass(frozen=True, slots=True)
class TopicCreated:
    name: str
    topic_id: UUID
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Done:
    """It happened and there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The producer ids `first_id` to `first_id + count - 1` belong to the broker that asked."""

    first_id: int
    count: int


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The partition as it is once the decision is durable; a finished reassignment shows here too."""

    partition: PartitionImage


@dataclass(frozen=True, slots=True)
class LeadersElected:
    """What became of each partition: None where a leader was elected, or why not.

    When all partitions were asked for, those that needed no election are left out. `silent` are those that
    were refused because a replica that is there has not said how long its log is; it will in a moment.
    """

    outcomes: tuple[tuple[TopicPartition, Refused | None], ...]
    silent: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerShuttingDown:
    """How many partitions the broker still leads, since no other replica is in sync; they end with it."""

    led_partition_count: int


@dataclass(frozen=True, slots=True)
class AclsDeleted:
    """What a filter chose."""

    acls: tuple[AclBinding, ...]


Result = (
    TopicCreated
    | TopicDeleted
    | Done
    | ProducerIdBlock
    | IsrChanged
    | LeadersElected
    | BrokerShuttingDown
    | AclsDeleted
    | Refused
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to make durable, together, and what to answer once they are."""

    records: tuple[MetadataRecord, ...]
    results: tuple[Result, ...]
