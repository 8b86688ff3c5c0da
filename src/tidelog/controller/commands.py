"""What the controller can be asked to do, and what it answers.

A command carries items; the answer has one result for each item, in the same order: what was done, or
`Refused` with Kafka's error code. One refused item does not stop the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from tidelog.model.errors import Refused
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
    """The changes of one topic or broker; with `replace_all`, whatever is not named is unset."""

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
class RegisterBroker:
    """A broker is up and can be reached at these addresses, by listener name."""

    broker_id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None

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


Command = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | FormCluster
    | RegisterBroker
    | AllocateProducerIds
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


Result = TopicCreated | TopicDeleted | Done | ProducerIdBlock | Refused


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to make durable, together, and what to answer once they are."""

    records: tuple[MetadataRecord, ...]
    results: tuple[Result, ...]
