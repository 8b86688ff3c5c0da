"""Sessions from a seed: plausible requests of every API and version, with arguments valid, at limits and
beyond.

`Builder` keeps a small model of what the steps so far should have made: topics, producers, transactions and
groups. It steers what comes next and need not be right: the systems say what they did. Activities
(`activities_*`) write a few steps each. At the end everything that was made is read back, compared like any
other answer, and then removed.
"""

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from oracle.session import Json, Session, Step, name, ref

STEPS_MIN = 30
UNKNOWN_ID = {"$uuid": "6f9a3b52-1d7c-4c59-9c2f-0a5b6c7d8e9f"}
#: APIs whose changes reach the parts of Kafka a little later
_SETTLING = {
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs",
    "CreateAcls", "DeleteAcls", "AlterClientQuotas", "AlterUserScramCredentials",
    "AlterPartitionReassignments", "ElectLeaders", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken",
}  # fmt: skip

Versions = dict[str, tuple[int, int]]


@dataclasses.dataclass(slots=True)
class Topic:
    """A topic that should exist."""

    alias: str
    partitions: int
    #: the step whose answer has its id
    metadata: str
    #: records so far, by partition
    ends: dict[int, int] = dataclasses.field(default_factory=dict)
    deleted: bool = False

    @property
    def id(self) -> Json:
        return ref(self.metadata, "topics", 0, "topic_id", otherwise=UNKNOWN_ID)


@dataclasses.dataclass(slots=True)
class Producer:
    """A producer with an id: idempotent, or transactional where it has a transactional id."""

    connection: str
    id: Json
    epoch: Json
    transactional_id: str | None = None
    #: transactions as of KIP-890, without AddPartitionsToTxn
    v2: bool = False
    open: bool = False
    #: whether there was an epoch before this one
    bumped: bool = False
    sequences: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)


class Builder:
    """A session in the making."""

    def __init__(self, seed: int, versions: Versions, brokers: int = 1) -> None:
        self.random = Random(seed)
        #: of every partition; the first one leads
        self.replicas = list(range(1, brokers + 1))
        self.versions = versions
        self.steps: list[Step] = []
        self.topics: list[Topic] = []
        self.producers: list[Producer] = []
        self.groups: dict[str, Any] = {}
        self.transactional_ids: list[str] = []
        self.quotas: list[Json] = []
        self.users: list[str] = []
        self.acls = False
        self._counts: dict[str, int] = {}

    # Choices

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choose(self, *options: Any) -> Any:
        return self.random.choice(options)

    def version(self, api: str, lowest: int = 0, highest: int = 99) -> int:
        first, last = self.versions[api]
        return self.random.randint(max(first, lowest), max(max(first, lowest), min(last, highest)))

    def new(self, kind: str) -> str:
        """A name that this session has not used: `t0`, `t1`, …"""
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}{number}"

    def topic(self) -> Topic:
        """One that exists; made if there is none."""
        living = [topic for topic in self.topics if not topic.deleted]
        return self.random.choice(living) if living else self.create_topic()

    def some_topic_name(self) -> Json:
        """Mostly one that exists."""
        if self.chance(0.85):
            return name(self.topic().alias)
        return self.choose(name("absent"), "", "bad name!", ".", "..", {"$text": ["x", 250]})

    def partition(self, topic: Topic) -> int:
        """Mostly one that exists."""
        return self.random.randrange(topic.partitions) if self.chance(0.93) else self.choose(-1, 7, 99)

    def connection(self) -> str:
        return self.choose("c0", "c0", "c0", "c1", "c2")

    def together(self, names: list[Json]) -> list[Json]:
        """Names to ask one coordinator about: several brokers coordinate several groups and transactions."""
        return names[:1] if len(self.replicas) > 1 else names

    # Steps

    def ask(self, api: str, fields: dict[str, Json], *, version: int | None = None, **options: Any) -> str:
        """Add a step and return its label."""
        label = f"s{len(self.steps) + 1}"
        if version is None:
            version = self.version(api)
        options.setdefault("settle", api in _SETTLING)
        self.steps.append(Step(label=label, api=api, version=version, fields=fields, **options))
        return label

    def create_topic(self, partitions: int | None = None, configs: dict[str, str] | None = None) -> Topic:
        """Create a topic and wait until it is there; metadata of several versions has its id from 10 on."""
        alias = self.new("t")
        if partitions is None:
            partitions = self.choose(1, 1, 2, 3)
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {
            "name": name(alias),
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
        }
        if len(self.replicas) > 1:
            # Where replicas go by themselves is anybody's guess.
            rows_of = [
                {"partition_index": number, "broker_ids": self.replicas} for number in range(partitions)
            ]
            topic |= {"num_partitions": -1, "replication_factor": -1, "assignments": rows_of}
        self.ask("CreateTopics", {"topics": [{**topic, "configs": rows}], "timeout": 10_000})
        metadata = self.ask(
            "Metadata",
            {"topics": [{"name": name(alias)}], "allow_auto_topic_creation": False},
            version=self.version("Metadata", 10),
            until={
                "no_errors": True,
                "path": ["topics", 0, "partitions", partitions - 1, "leader_id"],
                "not_in": [-1],
            },
        )
        made = Topic(alias, partitions, metadata)
        self.topics.append(made)
        self.ask(
            "ListOffsets",
            {
                "replica_id": -1,
                "topics": [
                    {
                        "name": name(alias),
                        "partitions": [
                            {"partition_index": number, "timestamp": -1, "current_leader_epoch": -1}
                            for number in range(partitions)
                        ],
                    }
                ],
            },
            until={"no_errors": True},
        )
        return made


Activity = Callable[[Builder], None]


def activities() -> list[tuple[float, Activity]]:
    """Every activity with its weight."""
    from oracle import (
        activities_cluster,
        activities_consuming,
        activities_groups,
        activities_producing,
        activities_security,
        activities_topics,
        activities_transactions,
    )

    modules = (
        activities_cluster,
        activities_consuming,
        activities_groups,
        activities_producing,
        activities_security,
        activities_topics,
        activities_transactions,
    )
    return [row for module in modules for row in module.ACTIVITIES]


def make_session(seed: int, versions: Versions, brokers: int = 1, steps_min: int = STEPS_MIN) -> Session:
    """The session of a seed."""
    from oracle.epilogue import clean_up, read_back

    builder = Builder(seed, versions, brokers)
    table = activities()
    # A session is about a few things, not about everything: later steps meet what earlier ones made.
    chosen = builder.random.sample(table, k=builder.random.randint(4, 9))
    weights = [weight for weight, _ in chosen]
    builder.create_topic()
    while len(builder.steps) < steps_min:
        builder.random.choices(chosen, weights)[0][1](builder)
    read_back(builder)
    clean_up(builder)
    return Session(seed, tuple(builder.steps))
