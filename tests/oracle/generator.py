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

from tests.oracle.runner import COORDINATED, LED
from tests.oracle.session import Json, Session, Step, name, names_in, ref

STEPS_MIN = 30
#: in so many sessions there are share groups, whose fetches wait for what may come
SHARE_GROUPS = 0.15
UNKNOWN_ID = {"$uuid": "6f9a3b52-1d7c-4c59-9c2f-0a5b6c7d8e9f"}
#: APIs whose changes reach the parts of Kafka a little later
_SETTLING = {
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs",
    "CreateAcls", "DeleteAcls", "AlterClientQuotas", "AlterUserScramCredentials",
    "AlterPartitionReassignments", "ElectLeaders", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken",
}  # fmt: skip

#: whoever waits for a member would wait for long if one of these went astray: see `activities_brokers`
_JOINING = {"JoinGroup", "SyncGroup", "LeaveGroup"}

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
    #: of every partition; the first one is preferred as leader
    replicas: list[int] = dataclasses.field(default_factory=lambda: [1])
    leader: int = 1

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
    sequences: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)


class Builder:
    """A session in the making."""

    def __init__(self, seed: int, versions: Versions, brokers: int = 1, *, faults: bool = False) -> None:
        self.random = Random(seed)
        self.brokers = list(range(1, brokers + 1))
        #: leaders and coordinators change: who is asked is found out when it is time
        self.faults = faults
        self.versions = versions
        self.steps: list[Step] = []
        self.topics: list[Topic] = []
        self.producers: list[Producer] = []
        self.groups: dict[str, Any] = {}
        self.transactional_ids: list[str] = []
        self.quotas: list[Json] = []
        self.users: list[str] = []
        self.acls = False
        #: what the times of records count from, behind `batches.BASE_TIME_MS`
        self.start_ms = 0
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

    def besides(self, topic: Topic) -> Topic:
        """Another one that exists; made if there is none."""
        others = [one for one in self.topics if not one.deleted and one is not topic]
        return self.random.choice(others) if others else self.create_topic()

    def neighbour(self, topic: Topic) -> Topic:
        """A topic that exists and has the same leader, maybe the same one."""
        return self.random.choice(
            [one for one in self.topics if not one.deleted and one.leader == topic.leader]
        )

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
        return names[:1] if self.several else names

    @property
    def several(self) -> bool:
        return len(self.brokers) > 1

    # Steps

    def ask(self, api: str, fields: dict[str, Json], *, version: int | None = None, **options: Any) -> str:
        """Add a step and return its label."""
        label = f"s{len(self.steps) + 1}"
        if version is None:
            version = self.version(api)
        options.setdefault("settle", api in _SETTLING)
        if self.several and not self.faults:
            self._route(api, version, fields, options)
        self.steps.append(Step(label=label, api=api, version=version, fields=fields, **options))
        return label

    def _route(self, api: str, version: int, fields: dict[str, Json], options: dict[str, Any]) -> None:
        """Choose the broker that is asked: the leader, the coordinator, or anyone; sometimes a wrong one."""
        wrong = 0.06 if "until" not in options and not options.get("cleanup") else 0.0
        if api in LED:
            options.setdefault("broker", self._leader(fields))
            # followers serve consumers from version 11 on, up to the watermark that they heard of last
            wrong = 0.0 if api == "Fetch" and version > 10 else wrong
        elif api not in COORDINATED:
            options.setdefault("broker", self.choose(1, 1, 2, 3))
            return
        elif api in _JOINING:
            return
        options.setdefault("elsewhere", self.chance(wrong))

    def _leader(self, fields: Json) -> int:
        """Who leads the first topic that a request names."""
        leaders = {topic.alias: topic.leader for topic in self.topics}
        return next((leaders[one] for one in names_in(fields) if one in leaders), 1)

    def everywhere(self, api: str, fields: dict[str, Json], **options: Any) -> None:
        """Ask the brokers behind the first one, too, until they know what the first one knows."""
        for broker in self.brokers[1:]:
            self.ask(api, fields, broker=broker, **options)

    def create_topic(
        self, partitions: int | None = None, configs: dict[str, str] | None = None, leader: int | None = None
    ) -> Topic:
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
        replicas = [1]
        if self.several:
            # Where replicas go by themselves is anybody's guess.
            replicas = self.rotated(leader or self.choose(1, 1, 2, 3))
            rows_of = [{"partition_index": number, "broker_ids": replicas} for number in range(partitions)]
            topic |= {"num_partitions": -1, "replication_factor": -1, "assignments": rows_of}
        self.ask("CreateTopics", {"topics": [{**topic, "configs": rows}], "timeout": 10_000})
        metadata = self.wait_topic(alias, partitions)
        made = Topic(alias, partitions, metadata, replicas=replicas, leader=replicas[0])
        self.topics.append(made)
        self.wait_served(made)
        return made

    def wait_served(self, topic: Topic) -> None:
        """Until the leader answers for every partition: it may be named before it does."""
        rows = [
            {"partition_index": number, "timestamp": -1, "current_leader_epoch": -1}
            for number in range(topic.partitions)
        ]
        fields = {"replica_id": -1, "topics": [{"name": name(topic.alias), "partitions": rows}]}
        where = {"broker": topic.leader} if self.several and not self.faults else {}
        self.ask("ListOffsets", fields, until={"no_errors": True}, **where)

    def rotated(self, first: int) -> list[int]:
        """All brokers in order, from this one on."""
        return self.brokers[first - 1 :] + self.brokers[: first - 1]

    def wait_topic(
        self, alias: str, partitions: int, leader: int | None = None, replicas: list[int] | None = None
    ) -> str:
        """Until every broker knows so many partitions, who leads them and that these are in sync; the
        step with the topic's id.
        """
        places = range(partitions) if leader else [partitions - 1]
        led = [
            {"path": ["topics", 0, "partitions", number, "leader_id"], "not_in": [-1]}
            | ({"in": [leader]} if leader else {})
            for number in places
        ]
        for number in places if replicas else ():
            path = ["topics", 0, "partitions", number]
            led.append({"path": [*path, "replica_nodes"], "in": [replicas]})
            led.append({"path": [*path, "isr_nodes"], "count": len(replicas or [])})
        fields = {"topics": [{"name": name(alias)}], "allow_auto_topic_creation": False}
        until = {"no_errors": True, "every": led} if len(led) > 1 else {"no_errors": True, **led[0]}
        where = {"broker": 1} if self.several else {}
        label = self.ask("Metadata", fields, version=self.version("Metadata", 10), until=until, **where)
        self.everywhere("Metadata", fields, version=12, until=until)
        return label


Activity = Callable[[Builder], None]


def activities(brokers: int = 1, about: str = "") -> list[tuple[float, Activity]]:
    """Every activity with its weight, or those in modules of this name."""
    from tests.oracle import (
        activities_brokers,
        activities_cluster,
        activities_consuming,
        activities_groups,
        activities_producing,
        activities_security,
        activities_share_admin,
        activities_share_brokers,
        activities_shares,
        activities_topics,
        activities_transactions,
    )

    modules: tuple[Any, ...] = (
        activities_cluster,
        activities_consuming,
        activities_groups,
        activities_producing,
        activities_security,
        activities_share_admin,
        activities_shares,
        activities_topics,
        activities_transactions,
    )
    if brokers > 1:
        modules += (activities_brokers, activities_share_brokers)
    return [row for module in modules if about in module.__name__ for row in module.ACTIVITIES]


def make_session(
    seed: int, versions: Versions, brokers: int = 1, steps_min: int = STEPS_MIN, about: str = ""
) -> Session:
    """The session of a seed, or one with the activities of some modules alone."""
    from tests.oracle.epilogue import clean_up, read_back

    builder = Builder(seed, versions, brokers)
    table = activities(brokers, about)
    if not about and not builder.chance(SHARE_GROUPS):
        table = [row for row in table if "share" not in row[1].__module__]
    # A session is about a few things, not about everything: later steps meet what earlier ones made.
    chosen = builder.random.sample(table, k=min(len(table), builder.random.randint(4, 9)))
    weights = [weight for weight, _ in chosen]
    builder.create_topic()
    while len(builder.steps) < steps_min:
        builder.random.choices(chosen, weights)[0][1](builder)
    read_back(builder)
    clean_up(builder)
    return Session(seed, tuple(builder.steps), brokers)
