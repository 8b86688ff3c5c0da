"""Sessions in which something goes wrong at the same step on both systems.

The answer to a request gets lost on its way (`Step.lost`, through `proxy`): the client asks again, as clients
do, and has to find out what became of the first. Or brokers are killed and started again (a step `Kill`): the
leader of a topic, the coordinator of a group or a transaction, or all of them. Every step is asked again
until it is answered. Answers and logs are compared like those of other sessions; how long it took until the
client could go on is told of both.
"""

import time
from typing import Any

from tests.oracle.activities_groups import ASSIGNMENT, join_fields
from tests.oracle.activities_producing import init_idempotent, produce, records
from tests.oracle.activities_transactions import offset_fetch, transactional_id, version_of, wait_ended
from tests.oracle.batches import BASE_TIME_MS
from tests.oracle.epilogue import clean_up, read_back
from tests.oracle.generator import STEPS_MIN, Builder, Producer, Topic, Versions
from tests.oracle.runner import KILL, WHOLE
from tests.oracle.session import Json, Session, name, ref

LOST = 0.4
#: how old records are where brokers are killed
RECENT_MS = 3_600_000


class FaultBuilder(Builder):
    """A session in the making, and how often brokers may still be killed in it."""

    def __init__(self, seed: int, versions: Versions, brokers: int, kills_left: int) -> None:
        super().__init__(seed, versions, brokers, faults=True)
        self.kills_left = kills_left
        self.killed = False

    def risky(self, api: str, fields: dict[str, Json], version: int | None = None) -> str:
        """A request whose answer may get lost."""
        return self.ask(api, fields, version=version, **self.maybe_lost())

    def maybe_lost(self) -> dict[str, Any]:
        """Not behind a crash: the broker may not be ready to do what is asked, so that nothing gets lost."""
        lost = {"lost": self.choose("early", "late")} if self.chance(LOST) else {}
        return {} if self.killed else lost

    def maybe_kill(self, called: str, whose: dict[str, Json]) -> None:
        """Kill who serves a request, or everybody."""
        if self.kills_left and self.chance(0.4):
            self.kills_left -= 1
            self.killed = True
            fields = {} if self.chance(0.3) else {"whose": {**whose, "called": called}}
            self.ask(KILL, fields, version=0)

    def kill_leader(self, topic: Topic) -> None:
        self.maybe_kill("leader", {"api": "Produce", "topics": [{"name": name(topic.alias)}]})

    def kill_group_coordinator(self, alias: str) -> None:
        self.maybe_kill("group coordinator", {"api": "Heartbeat", "group_id": name(alias)})

    def kill_transaction_coordinator(self, producer: Producer) -> None:
        whose = {"api": "EndTxn", "transactional_id": transactional_id(producer)}
        self.maybe_kill("transaction coordinator", whose)


def idempotent(b: FaultBuilder) -> None:
    """Batches in order; what is sent again is not appended again."""
    producer = init_idempotent(b)
    topic = b.topic()
    sequence = 0
    for number in range(b.choose(2, 3, 4)):
        if number == 1:
            b.kill_leader(topic)
        rows = records(b)
        one = {
            "records": rows,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "base_sequence": sequence,
        }
        sequence += len(rows)
        produce(b, [(topic, 0, [one])], **b.maybe_lost())


def transaction(b: FaultBuilder) -> None:
    """Every request of a transaction may have to be sent twice."""
    alias = b.new("x")
    b.transactional_ids.append(alias)
    fields = {
        "transactional_id": name(alias),
        "transaction_timeout": 120_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    label = b.risky("InitProducerId", fields)
    producer = Producer(
        "c0", ref(label, "producer_id", otherwise=4711), ref(label, "producer_epoch", otherwise=0), alias
    )
    producer.v2 = b.chance(0.5)
    for _ in range(b.choose(1, 2)):
        _one_transaction(b, producer)


def _one_transaction(b: FaultBuilder, producer: Producer) -> None:
    topic = b.topic()
    identity: dict[str, Json] = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    if not producer.v2:
        added = {
            "v3_and_below_transactional_id": transactional_id(producer),
            "v3_and_below_producer_id": producer.id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": name(topic.alias), "partitions": [0]}],
        }
        b.risky("AddPartitionsToTxn", added, b.version("AddPartitionsToTxn", highest=3))
    for _ in range(b.choose(1, 2)):
        rows = records(b)
        place = (topic.alias, 0)
        sequence = producer.sequences.get(place, 0)
        producer.sequences[place] = sequence + len(rows)
        one = {**identity, "records": rows, "base_sequence": sequence, "transactional": True}
        produce(
            b,
            [(topic, 0, [one])],
            version=version_of(b, "Produce", producer.v2),
            transactional_id=transactional_id(producer),
            **b.maybe_lost(),
        )
        b.kill_leader(topic)
    if b.chance(0.5):
        _offsets(b, producer, topic)
    b.kill_transaction_coordinator(producer)
    fields = {"transactional_id": transactional_id(producer), **identity, "committed": b.chance(0.6)}
    label = b.risky("EndTxn", fields, version_of(b, "EndTxn", producer.v2))
    wait_ended(b, producer.transactional_id or "")
    if producer.v2:
        producer.id = ref(label, "producer_id", otherwise=producer.id)
        producer.epoch = ref(label, "producer_epoch", otherwise=producer.epoch)
        producer.sequences.clear()


def _offsets(b: FaultBuilder, producer: Producer, topic: Topic) -> None:
    group = "gt"
    b.groups.setdefault(group, {"kind": "offsets"})
    identity: dict[str, Json] = {
        "transactional_id": transactional_id(producer),
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "group_id": name(group),
    }
    if not producer.v2:
        b.risky("AddOffsetsToTxn", identity)
    row = {
        "partition_index": 0,
        "committed_offset": b.choose(1, 5),
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    fields = {
        **identity,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": name(topic.alias), "partitions": [row]}],
    }
    b.risky("TxnOffsetCommit", fields, version_of(b, "TxnOffsetCommit", producer.v2))


def classic(b: FaultBuilder) -> None:
    """A member joins, gets its assignment, commits, beats and leaves."""
    alias = b.new("c")
    b.groups[alias] = {"kind": "offsets"}
    version = b.version("JoinGroup", 4)
    instance = name(f"i{alias}") if version >= 5 and b.chance(0.3) else None
    first = b.risky("JoinGroup", join_fields(alias, "", instance, b), version)
    label = first
    if instance is None:
        label = b.risky(
            "JoinGroup", join_fields(alias, ref(first, "member_id", otherwise=""), None, b), version
        )
    member: dict[str, Json] = {
        "group_id": name(alias),
        "member_id": ref(label, "member_id", otherwise=""),
        "generation_id": ref(label, "generation_id", otherwise=1),
        "group_instance_id": instance,
    }
    assignment = [{"member_id": member["member_id"], "assignment": ASSIGNMENT}]
    given = {"protocol_type": "consumer", "protocol_name": "range", "assignments": assignment}
    b.risky("SyncGroup", {**member, **given}, b.version("SyncGroup", 3))
    b.kill_group_coordinator(alias)
    b.risky("Heartbeat", member, b.version("Heartbeat", 3))
    _commit(b, alias, member)
    if b.chance(0.5):
        left = {
            "member_id": member["member_id"] if instance is None else "",
            "group_instance_id": instance,
            "reason": None,
        }
        b.risky("LeaveGroup", {**member, "members": [left]}, b.version("LeaveGroup", 3))


def modern(b: FaultBuilder) -> None:
    """The same by the consumer protocol."""
    alias = b.new("m")
    b.groups[alias] = {"kind": "offsets"}
    member: dict[str, Json] = {
        "group_id": name(alias),
        "member_id": name("member"),
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [name(b.topic().alias)],
        "topic_partitions": [],
    }
    label = b.risky("ConsumerGroupHeartbeat", {**member, "member_epoch": 0}, 1)
    epoch = ref(label, "member_epoch", otherwise=1)
    b.kill_group_coordinator(alias)
    beat = {**member, "member_epoch": epoch, "subscribed_topic_names": None, "topic_partitions": None}
    b.risky("ConsumerGroupHeartbeat", {**beat, "rebalance_timeout": -1}, 1)
    _commit(b, alias, {**member, "generation_id_or_member_epoch": epoch}, 9)
    if b.chance(0.5):
        b.risky("ConsumerGroupHeartbeat", {**beat, "member_epoch": -1}, 1)


def _commit(b: FaultBuilder, alias: str, member: dict[str, Json], lowest: int = 7) -> None:
    topic = b.topic()
    row = {
        "partition_index": 0,
        "committed_offset": b.choose(0, 2, 7),
        "committed_leader_epoch": -1,
        "committed_metadata": b.choose("", "m"),
    }
    fields = {
        "generation_id_or_member_epoch": member.get("generation_id", -1),
        **member,
        "topics": [{"name": name(topic.alias), "topic_id": topic.id, "partitions": [row]}],
    }
    b.risky("OffsetCommit", fields, b.version("OffsetCommit", lowest))
    offset_fetch(b, alias, require_stable=False)


def admin(b: FaultBuilder) -> None:
    """What is done already is refused, or nothing new."""
    topic = b.topic()
    kind = b.choose("create", "configs", "records", "users")
    if kind == "create":
        row = {"name": name("again"), "num_partitions": -1, "replication_factor": -1, "configs": []}
        assignments = [{"partition_index": 0, "broker_ids": b.brokers}]
        wanted = {"topics": [{**row, "assignments": assignments}], "timeout": 20_000}
        b.risky("CreateTopics", wanted)
        gone = {"topics": [{"name": name("again"), "topic_id": None}], "topic_names": [name("again")]}
        b.risky("DeleteTopics", {**gone, "timeout": 20_000})
    elif kind == "configs":
        change = {"name": "cleanup.policy", "value": "compact", "config_operation": b.choose(0, 2)}
        resource = {"resource_type": 2, "resource_name": name(topic.alias), "configs": [change]}
        b.risky("IncrementalAlterConfigs", {"resources": [resource], "validate_only": False})
        keys = {
            "resource_type": 2,
            "resource_name": name(topic.alias),
            "configuration_keys": ["cleanup.policy"],
        }
        b.ask("DescribeConfigs", {"resources": [keys]})
    elif kind == "records":
        row = {"partition_index": 0, "offset": b.choose(0, -1)}
        deleted = {"topics": [{"name": name(topic.alias), "partitions": [row]}], "timeout": 20_000}
        b.risky("DeleteRecords", deleted)
    else:
        b.users = ["u0"]
        b.risky(
            "AlterUserScramCredentials",
            {"deletions": [{"name": name("u0"), "mechanism": 1}], "upsertions": []},
        )


STORIES = ((3.0, idempotent), (3.0, transaction), (3.0, classic), (2.0, modern), (1.0, admin))


def make_fault_session(seed: int, versions: Versions, brokers: int = 1, *, kills: int = 4) -> Session:
    """The session of a seed; in every so-many-th one brokers are killed once or twice."""
    b = FaultBuilder(seed, versions, brokers, 0)
    if kills and seed % kills == 0:
        b.kills_left = b.choose(1, 2)
        # Kafka forgets producers whose records are older than a day when it starts: see `differences`
        b.start_ms = round(time.time() * 1000) - BASE_TIME_MS - RECENT_MS
    for _ in range(b.choose(1, 2)):
        b.create_topic(1)
    weights = [weight for weight, _ in STORIES]
    while len(b.steps) < STEPS_MIN:
        b.random.choices(STORIES, weights)[0][1](b)
    if b.killed:
        b.ask(WHOLE, {}, version=0)
    read_back(b)
    clean_up(b)
    return Session(seed, tuple(b.steps), brokers, faults=True)
