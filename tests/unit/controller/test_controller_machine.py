"""The controller: every command, every refusal."""

from random import Random
from uuid import UUID

import pytest

from tidelog.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    BrokersChanged,
    Command,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Done,
    FormCluster,
    LiveBroker,
    PartitionsSpec,
    ProducerIdBlock,
    Result,
    TopicCreated,
    TopicDeleted,
    TopicReference,
    TopicSpec,
)
from tidelog.controller.internal_topics import internal_topic
from tidelog.controller.machine import Controller, new_uuid, uuid_text
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import ALL_BROKERS, Endpoint
from tidelog.model.settings import BrokerSettings

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


class Cluster:
    """A controller and the image its decisions lead to."""

    def __init__(self, broker_count: int = 1, **overrides: str) -> None:
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        self.settings = BrokerSettings.resolve(named)
        self.controller = Controller(self.settings)
        self.random = Random(1)
        self.image = ClusterImage()
        self.live = {
            broker_id: LiveBroker(broker_id, "first", {"PLAINTEXT": Endpoint(f"b{broker_id}", 9092)})
            for broker_id in range(1, broker_count + 1)
        }
        self.run(BrokersChanged(tuple(self.live.values()), 1))

    def run(self, command: Command) -> tuple[Result, ...]:
        decision = self.controller.handle(command, self.image, self.random)
        assert len(decision.results) == command.item_count
        if decision.records:
            self.image = self.image.apply(decision.records)
            self.image.check_invariants()
        return decision.results

    def create(self, *topics: TopicSpec, validate_only: bool = False) -> tuple[Result, ...]:
        return self.run(CreateTopics(topics, validate_only))

    def alter(
        self, type: ConfigResourceType, name: str, *changes: ConfigChange, replace_all: bool = False
    ) -> Result:
        [result] = self.run(AlterConfigs((ConfigChanges(type, name, changes, replace_all),)))
        return result


def code(result: Result) -> ErrorCode:
    return result.code if isinstance(result, Refused) else ErrorCode.NONE


def test_the_cluster_id_is_made_once() -> None:
    cluster = Cluster()
    cluster.run(FormCluster())
    made = cluster.image.cluster_id
    assert len(made) == 22 and "=" not in made
    cluster.run(FormCluster("other"))
    assert cluster.image.cluster_id == made
    given = Cluster()
    given.run(FormCluster("given-elsewhere"))
    assert given.image.cluster_id == "given-elsewhere"


def test_ids_are_random_and_printable() -> None:
    random = Random(3)
    made = [new_uuid(random) for _ in range(500)]
    assert len(set(made)) == 500
    assert all(one.version == 4 and not uuid_text(one).startswith("-") for one in made)


def test_a_broker_that_is_there_can_move() -> None:
    cluster = Cluster(3)
    epoch = cluster.image.brokers[2].epoch
    cluster.live[2] = LiveBroker(2, "first", {"PLAINTEXT": Endpoint("moved", 1)}, "rack")
    cluster.run(BrokersChanged(tuple(cluster.live.values()), 2))
    assert cluster.image.brokers[2].endpoints["PLAINTEXT"] == Endpoint("moved", 1)
    assert (cluster.image.brokers[2].rack, cluster.image.brokers[2].epoch) == ("rack", epoch)


def test_producer_ids_come_in_blocks() -> None:
    cluster = Cluster()
    assert cluster.run(AllocateProducerIds(1)) == (ProducerIdBlock(0, 1000),)
    assert cluster.run(AllocateProducerIds(1)) == (ProducerIdBlock(1000, 1000),)


def test_create_topic_with_defaults_and_settings() -> None:
    cluster = Cluster(3, num_partitions="4", default_replication_factor="2")
    [defaults, chosen] = cluster.create(
        TopicSpec("defaults"), TopicSpec("chosen", 6, 3, configs={"retention.ms": "5"})
    )
    assert isinstance(defaults, TopicCreated) and isinstance(chosen, TopicCreated)
    assert (defaults.partition_count, defaults.replication_factor) == (4, 2)
    assert (chosen.partition_count, chosen.replication_factor, chosen.configs) == (
        6,
        3,
        {"retention.ms": "5"},
    )
    assert cluster.image.topics["chosen"].configs == {"retention.ms": "5"}
    assert cluster.image.topic_names_by_id[chosen.topic_id] == "chosen"
    for partition in cluster.image.topics["chosen"].partitions:
        assert partition.leader == partition.replicas[0] and partition.isr == partition.replicas


def test_validate_only_decides_without_doing() -> None:
    cluster = Cluster()
    [good, bad] = cluster.create(TopicSpec("good", 2), TopicSpec("bad", 0), validate_only=True)
    assert isinstance(good, TopicCreated) and code(bad) is ErrorCode.INVALID_PARTITIONS
    assert not cluster.image.topics


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TopicSpec(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (TopicSpec("dotted_name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("new", 0), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("new", -2), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("new", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("new", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("new", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("new", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("new", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (TopicSpec("new", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (TopicSpec("new", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (TopicSpec("new", configs={"remote.storage.enable": "true"}), ErrorCode.INVALID_CONFIG),
        (TopicSpec("new", 1, -1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST),
        (TopicSpec("new", -1, 1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST),
        (TopicSpec("new", assignments=((1, (1,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("new", assignments=((0, (1,)), (0, (2,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("new", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("new", assignments=((0, (1, 1)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("new", assignments=((0, (9,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("new", assignments=((0, (1,)), (1, (1, 2)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else repr(value)[:60],
)
def test_refused_topics_leave_nothing_behind(spec: TopicSpec, expected: ErrorCode) -> None:
    cluster = Cluster(2)
    cluster.create(TopicSpec("there"), TopicSpec("dotted.name"))
    before = cluster.image
    [refused] = cluster.create(spec)
    assert code(refused) is expected
    assert isinstance(refused, Refused) and refused.message
    assert cluster.image is before


def test_manual_assignment_is_kept_in_order() -> None:
    cluster = Cluster(3)
    [created] = cluster.create(TopicSpec("manual", assignments=((1, (3, 1)), (0, (2, 3)))))
    assert isinstance(created, TopicCreated) and (created.partition_count, created.replication_factor) == (
        2,
        2,
    )
    assert [partition.replicas for partition in cluster.image.topics["manual"].partitions] == [(2, 3), (3, 1)]
    assert [partition.leader for partition in cluster.image.topics["manual"].partitions] == [2, 3]


def test_names_that_differ_in_dots_collide_within_one_request_too() -> None:
    cluster = Cluster()
    results = cluster.create(TopicSpec("a.b"), TopicSpec("a_b"), TopicSpec("ab"), TopicSpec("ab"))
    assert [code(result) for result in results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]


def test_the_cluster_holds_a_limited_number_of_partitions() -> None:
    cluster = Cluster(tidelog_partitions_max="5")
    results = cluster.create(TopicSpec("a", 3), TopicSpec("b", 3), TopicSpec("c", 2))
    assert [code(result) for result in results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.NONE,
    ]
    [grown] = cluster.run(CreatePartitions((PartitionsSpec("a", 4),)))
    assert code(grown) is ErrorCode.INVALID_PARTITIONS


def test_delete_by_name_and_by_id() -> None:
    cluster = Cluster()
    [a, b] = cluster.create(TopicSpec("a", 2, configs={"retention.ms": "1"}), TopicSpec("b"))
    assert isinstance(a, TopicCreated) and isinstance(b, TopicCreated)
    results = cluster.run(DeleteTopics((TopicReference("a"), TopicReference(topic_id=b.topic_id))))
    assert results == (TopicDeleted("a", a.topic_id), TopicDeleted("b", b.topic_id))
    assert not cluster.image.topics and not cluster.image.topic_names_by_id


def test_refused_deletes() -> None:
    cluster = Cluster()
    a = cluster.create(TopicSpec("a"), TopicSpec("b"))[0]
    assert isinstance(a, TopicCreated)
    results = cluster.run(
        DeleteTopics(
            (
                TopicReference("missing"),
                TopicReference(topic_id=UUID(int=5)),
                TopicReference(),
                TopicReference("a", a.topic_id),
                TopicReference("a"),
                TopicReference(topic_id=a.topic_id),
                TopicReference("b"),
            )
        )
    )
    assert [code(result) for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert list(cluster.image.topics) == ["a"]


def test_deletion_can_be_switched_off() -> None:
    cluster = Cluster(delete_topic_enable="false")
    cluster.create(TopicSpec("a"))
    [refused] = cluster.run(DeleteTopics((TopicReference("a"),)))
    assert code(refused) is ErrorCode.TOPIC_DELETION_DISABLED and "a" in cluster.image.topics


def test_partitions_are_added() -> None:
    cluster = Cluster(3)
    cluster.create(TopicSpec("a", 2, 2), TopicSpec("b", 1, 1))
    results = cluster.run(
        CreatePartitions((PartitionsSpec("a", 5), PartitionsSpec("b", 3, assignments=((3,), (2,)))))
    )
    assert results == (Done(), Done())
    assert [len(partition.replicas) for partition in cluster.image.topics["a"].partitions] == [2] * 5
    assert [partition.replicas for partition in cluster.image.topics["b"].partitions[1:]] == [(3,), (2,)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PartitionsSpec("missing", 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionsSpec("a", 2), ErrorCode.INVALID_PARTITIONS),
        (PartitionsSpec("a", 1), ErrorCode.INVALID_PARTITIONS),
        (PartitionsSpec("a", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (PartitionsSpec("a", 4, ((1, 2),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (PartitionsSpec("a", 3, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (PartitionsSpec("a", 3, ((1, 9),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (PartitionsSpec("a", 3, ((1, 1),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refused_growth(spec: PartitionsSpec, expected: ErrorCode) -> None:
    cluster = Cluster(2)
    cluster.create(TopicSpec("a", 2, 2))
    before = cluster.image
    [refused] = cluster.run(CreatePartitions((spec,)))
    assert code(refused) is expected and cluster.image is before


def test_growth_validate_only_and_named_twice() -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a"))
    assert cluster.run(CreatePartitions((PartitionsSpec("a", 5),), validate_only=True)) == (Done(),)
    assert cluster.image.partition_count == 1
    results = cluster.run(CreatePartitions((PartitionsSpec("a", 5), PartitionsSpec("a", 6))))
    assert [code(result) for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_topic_settings_change_one_by_one() -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a", configs={"retention.ms": "5", "segment.ms": "7"}))
    assert cluster.alter(TOPIC, "a", ConfigChange("segment.bytes", SET, "1000")) == Done()
    assert cluster.alter(TOPIC, "a", ConfigChange("retention.ms", DELETE)) == Done()
    assert cluster.alter(TOPIC, "a", ConfigChange("cleanup.policy", APPEND, "compact")) == Done()
    assert cluster.image.topics["a"].configs == {
        "segment.ms": "7",
        "segment.bytes": "1000",
        "cleanup.policy": "delete,compact",
    }
    assert cluster.alter(TOPIC, "a", ConfigChange("cleanup.policy", SUBTRACT, "delete")) == Done()
    assert cluster.image.topics["a"].configs["cleanup.policy"] == "compact"
    assert cluster.alter(TOPIC, "a", ConfigChange("retention.ms", SET, "9"), replace_all=True) == Done()
    assert cluster.image.topics["a"].configs == {"retention.ms": "9"}


def test_a_list_grows_no_longer_than_an_answer_can_tell() -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a"))
    setting = "leader.replication.throttled.replicas"
    parts = [",".join(f"{number}:{part}" for number in range(3_000)) for part in range(2)]
    assert cluster.alter(TOPIC, "a", ConfigChange(setting, APPEND, parts[0])) == Done()
    before = cluster.image
    refused = cluster.alter(TOPIC, "a", ConfigChange(setting, APPEND, parts[1]))
    assert isinstance(refused, Refused) and "32767 bytes" in (refused.message or "")
    assert refused.code is ErrorCode.INVALID_CONFIG and cluster.image is before
    # What is there can be made shorter.
    assert cluster.alter(TOPIC, "a", ConfigChange(setting, SUBTRACT, parts[0])) == Done()


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a", configs={"retention.ms": "5"}))
    before = cluster.image
    assert cluster.alter(TOPIC, "a", ConfigChange("retention.ms", SET, "5")) == Done()
    assert cluster.alter(TOPIC, "a", ConfigChange("segment.ms", DELETE)) == Done()
    assert cluster.image is before


def test_broker_settings_change_for_one_and_for_all() -> None:
    cluster = Cluster()
    assert cluster.alter(BROKER, "1", ConfigChange("log.retention.ms", SET, "5")) == Done()
    assert cluster.alter(BROKER, ALL_BROKERS, ConfigChange("log.retention.ms", SET, "6")) == Done()
    assert {name: dict(configs) for name, configs in cluster.image.broker_configs.items()} == {
        "1": {"log.retention.ms": "5"},
        "": {"log.retention.ms": "6"},
    }
    assert cluster.alter(BROKER, "1", ConfigChange("log.retention.ms", DELETE)) == Done()
    assert "1" not in cluster.image.broker_configs


def test_the_last_policy_may_go() -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a"))
    assert cluster.alter(TOPIC, "a", ConfigChange("cleanup.policy", SUBTRACT, "delete")) == Done()
    assert cluster.image.topics["a"].configs == {"cleanup.policy": ""}


@pytest.mark.parametrize(
    ("type", "name", "change", "expected"),
    [
        (TOPIC, "missing", ConfigChange("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ConfigChange("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "a", ConfigChange("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "a", ConfigChange("retention.ms", SET, "-2"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "a", ConfigChange("retention.ms", SET), ErrorCode.INVALID_REQUEST),
        (TOPIC, "a", ConfigChange("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "a", ConfigChange("cleanup.policy", SET, "delete,"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "a", ConfigChange("cleanup.policy", APPEND, "shred"), ErrorCode.INVALID_CONFIG),
        (BROKER, "7", ConfigChange("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "one", ConfigChange("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ConfigChange("node.id", SET, "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "1", ConfigChange("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_refused_settings(
    type: ConfigResourceType, name: str, change: ConfigChange, expected: ErrorCode
) -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a"))
    before = cluster.image
    refused = cluster.alter(type, name, change)
    assert code(refused) is expected and cluster.image is before


def test_settings_named_twice_and_validate_only() -> None:
    cluster = Cluster()
    cluster.create(TopicSpec("a"))
    before = cluster.image
    twice = (ConfigChange("retention.ms", SET, "1"), ConfigChange("retention.ms", DELETE))
    assert code(cluster.alter(TOPIC, "a", *twice)) is ErrorCode.INVALID_REQUEST
    once = ConfigChanges(TOPIC, "a", twice[:1])
    results = cluster.run(AlterConfigs((once, once)))
    assert [code(result) for result in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert cluster.run(AlterConfigs((once,), validate_only=True)) == (Done(),)
    assert cluster.image is before


def test_internal_topics_fit_the_cluster() -> None:
    cluster = Cluster()
    specs = [
        internal_topic(name, cluster.settings, 1) for name in ("__consumer_offsets", "__transaction_state")
    ]
    [offsets, transactions] = cluster.create(*specs)
    assert isinstance(offsets, TopicCreated) and isinstance(transactions, TopicCreated)
    assert (offsets.partition_count, offsets.replication_factor) == (50, 1)
    assert offsets.configs["cleanup.policy"] == "compact"
    assert transactions.configs["min.insync.replicas"] == "1"
    assert internal_topic("__consumer_offsets", cluster.settings, 5).replication_factor == 3


def test_a_shared_store_keeps_the_replication_factor_of_internal_topics() -> None:
    settings = BrokerSettings.resolve({"zookeeper.connect": "localhost:2181"})
    for name in ("__consumer_offsets", "__transaction_state"):
        assert internal_topic(name, settings, 1).replication_factor == 3
