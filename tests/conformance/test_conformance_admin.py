"""Topics, partitions, settings and records through the admin clients of confluent-kafka and kafka-python."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaAdminClient
from kafka import OffsetSpec as PurePythonOffsetSpec
from kafka import TopicPartition as PurePythonTopicPartition
from kafka.admin import ConfigResource as PurePythonConfigResource

from tests.conformance.drivers.confluent import producer, read_all, send
from tests.conformance.drivers.contract import DEADLINE_SECONDS, Message, TopicMaker, new_name
from tests.conformance.drivers.kcat import run_kcat


@pytest.fixture(scope="module")
def pure_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def answer_of(futures: dict[Any, Future[Any]]) -> Any:
    """The one result of a call that was about one thing."""
    assert len(futures) == 1
    return next(iter(futures.values())).result(DEADLINE_SECONDS)


def error_of(futures: dict[Any, Future[Any]]) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        answer_of(futures)
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def create(admin: AdminClient, topic: NewTopic, **options: Any) -> dict[Any, Future[Any]]:
    futures: dict[Any, Future[Any]] = admin.create_topics(
        [topic], operation_timeout=DEADLINE_SECONDS, **options
    )
    return futures


def known(ask: Callable[[], dict[Any, Future[Any]]]) -> Any:
    """The answer about a topic, once the broker has heard of it: on Kafka a moment late."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return answer_of(ask())
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def describe(admin: AdminClient, topic: str) -> Any:
    return known(lambda: admin.describe_topics(TopicCollection([topic])))


def configs(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries: dict[str, ConfigEntry] = known(lambda: admin.describe_configs([resource]))
    return entries


def alter(
    admin: AdminClient, topic: str, *changes: tuple[str, AlterConfigOpType, str | None], **options: Any
) -> Any:
    entries = [
        ConfigEntry(name, value, incremental_operation=operation) for name, operation, value in changes
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    return admin.incremental_alter_configs([resource], **options)


def eventually(condition: Callable[[], bool]) -> None:
    """Kafka's brokers learn of a change a moment after the controller has answered."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the change did not show"
        time.sleep(0.02)


class TestCreate:
    def test_create_describe_delete(self, admin: AdminClient) -> None:
        name = new_name("admin")
        answer_of(create(admin, NewTopic(name, 3, 1)))
        eventually(lambda: name in admin.list_topics(timeout=5).topics)
        described = describe(admin, name)
        assert described.name == name
        assert not described.is_internal
        assert [partition.id for partition in described.partitions] == [0, 1, 2]
        for partition in described.partitions:
            assert [node.id for node in partition.replicas] == [node.id for node in partition.isr]
            assert partition.leader.id in [node.id for node in partition.replicas]
        assert str(described.topic_id) not in ("", "AAAAAAAAAAAAAAAAAAAAAA")
        answer_of(admin.delete_topics([name]))
        eventually(lambda: name not in admin.list_topics(timeout=5).topics)

    def test_a_name_used_again_gets_another_id(self, admin: AdminClient, bootstrap: str) -> None:
        name = new_name("admin")
        answer_of(create(admin, NewTopic(name, 1, 1)))
        first = str(describe(admin, name).topic_id)
        assert not any(send(producer(bootstrap), name, [Message(value=b"old")]))
        answer_of(admin.delete_topics([name]))
        eventually(lambda: name not in admin.list_topics(timeout=5).topics)
        answer_of(create(admin, NewTopic(name, 1, 1)))
        assert str(describe(admin, name).topic_id) != first
        assert not any(send(producer(bootstrap), name, [Message(value=b"new")]))
        assert [message.value for message in read_all(bootstrap, name, 1)] == [b"new"]

    def test_broker_defaults(self, admin: AdminClient) -> None:
        name = new_name("admin")
        answer_of(create(admin, NewTopic(name)))
        assert len(describe(admin, name).partitions) == 4

    def test_validate_only_makes_nothing(self, admin: AdminClient) -> None:
        name = new_name("admin")
        answer_of(create(admin, NewTopic(name, 1, 1), validate_only=True))
        bad = NewTopic(new_name("admin"), 1, 1, config={"retention.ms": "soon"})
        assert error_of(create(admin, bad, validate_only=True)).code() == KafkaError.INVALID_CONFIG
        assert name not in admin.list_topics(timeout=5).topics

    def test_settings_are_kept(self, admin: AdminClient) -> None:
        name = new_name("admin")
        given = {"retention.ms": "1234567", "cleanup.policy": "compact,delete", "segment.bytes": "2000000"}
        answer_of(create(admin, NewTopic(name, 1, 1, config=given)))
        entries = configs(admin, name)
        assert {key: entries[key].value for key in given} == given
        assert {entries[key].source for key in given} == {ConfigSource.DYNAMIC_TOPIC_CONFIG.value}  # type: ignore[comparison-overlap]

    def test_manual_assignment(self, admin: AdminClient) -> None:
        name = new_name("admin")
        broker = next(iter(admin.list_topics(timeout=5).brokers))
        answer_of(create(admin, NewTopic(name, 2, replica_assignment=[[broker], [broker]])))
        assert [[node.id for node in part.replicas] for part in describe(admin, name).partitions] == [
            [broker]
        ] * 2

    def test_assignment_to_an_unknown_broker(self, admin: AdminClient) -> None:
        topic = NewTopic(new_name("admin"), 1, replica_assignment=[[4711]])
        assert error_of(create(admin, topic)).code() == KafkaError.INVALID_REPLICA_ASSIGNMENT

    @pytest.mark.parametrize("name", ["", ".", "..", "with space", "straße", "a/b", "x" * 250])
    def test_bad_names(self, name: str, pure_admin: KafkaAdminClient) -> None:
        with pytest.raises(kafka.errors.InvalidTopicError):
            pure_admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})

    def test_the_longest_name(self, admin: AdminClient) -> None:
        name = (new_name("long._-") + "x" * 249)[:249]
        answer_of(create(admin, NewTopic(name, 1, 1)))
        assert len(describe(admin, name).partitions) == 1

    def test_names_that_collide_in_metrics(self, admin: AdminClient) -> None:
        """Kafka refuses a.b beside a_b: both would be one name in its metrics."""
        stem = new_name("admin")
        answer_of(create(admin, NewTopic(f"{stem}.b", 1, 1)))
        assert error_of(create(admin, NewTopic(f"{stem}_b", 1, 1))).code() == KafkaError.TOPIC_EXCEPTION

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("no.such.setting", "1"),
            ("retention.ms", "soon"),
            ("retention.ms", "-5"),
            ("cleanup.policy", "burn"),
            ("max.message.bytes", "-1"),
            ("compression.type", "rar"),
            ("message.timestamp.type", "Yesterday"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("segment.bytes", "1"),
            ("min.insync.replicas", "0"),
        ],
    )
    def test_bad_settings(self, name: str, value: str, admin: AdminClient) -> None:
        topic = NewTopic(new_name("admin"), 1, 1, config={name: value})
        error = error_of(create(admin, topic))
        assert error.code() == KafkaError.INVALID_CONFIG
        assert name in error.str()

    def test_more_replicas_than_brokers(self, admin: AdminClient) -> None:
        assert error_of(create(admin, NewTopic(new_name("admin"), 1, 9))).code() == (
            KafkaError.INVALID_REPLICATION_FACTOR
        )

    def test_no_partitions(self, pure_admin: KafkaAdminClient) -> None:
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            pure_admin.create_topics({new_name("admin"): {"num_partitions": 0, "replication_factor": 1}})

    def test_existing(self, admin: AdminClient, topic: str) -> None:
        assert error_of(create(admin, NewTopic(topic, 1, 1))).code() == KafkaError.TOPIC_ALREADY_EXISTS

    def test_each_topic_is_answered_by_itself(self, admin: AdminClient, topic: str) -> None:
        good = new_name("admin")
        futures = admin.create_topics([NewTopic(topic, 1, 1), NewTopic(good, 1, 1)])
        assert error_of({topic: futures[topic]}).code() == KafkaError.TOPIC_ALREADY_EXISTS
        futures[good].result(DEADLINE_SECONDS)


class TestDelete:
    def test_unknown(self, admin: AdminClient) -> None:
        error = error_of(admin.delete_topics([new_name("missing")]))
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_describe_unknown(self, admin: AdminClient) -> None:
        error = error_of(admin.describe_topics(TopicCollection([new_name("missing")])))
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_kafka_python(self, pure_admin: KafkaAdminClient, make_topic: TopicMaker) -> None:
        name = make_topic(2)
        described = pure_admin.describe_topics([name])[0]
        assert (described["name"], len(described["partitions"]), described["error_code"]) == (name, 2, 0)
        topic_id = uuid.UUID(str(described["topic_id"]))
        assert pure_admin.describe_topics([topic_id])[0]["name"] == name
        pure_admin.delete_topics([name])
        eventually(lambda: name not in pure_admin.list_topics())
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
            pure_admin.delete_topics([name])


class TestCreatePartitions:
    def test_grow(self, admin: AdminClient, topic: str) -> None:
        answer_of(admin.create_partitions([NewPartitions(topic, 5)]))
        eventually(lambda: len(describe(admin, topic).partitions) == 5)

    def test_validate_only(self, admin: AdminClient, topic: str) -> None:
        answer_of(admin.create_partitions([NewPartitions(topic, 5)], validate_only=True))
        assert len(describe(admin, topic).partitions) == 1

    @pytest.mark.parametrize("count", [1, 2])
    def test_not_more_than_before(self, count: int, admin: AdminClient, make_topic: TopicMaker) -> None:
        name = make_topic(2)
        error = error_of(admin.create_partitions([NewPartitions(name, count)]))
        assert error.code() == KafkaError.INVALID_PARTITIONS

    def test_unknown_topic(self, admin: AdminClient) -> None:
        error = error_of(admin.create_partitions([NewPartitions(new_name("missing"), 3)]))
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_kafka_python_with_assignment(
        self, pure_admin: KafkaAdminClient, admin: AdminClient, topic: str
    ) -> None:
        broker = next(iter(admin.list_topics(timeout=5).brokers))
        pure_admin.create_partitions({topic: {"count": 3, "assignments": [[broker], [broker]]}})
        eventually(lambda: len(describe(admin, topic).partitions) == 3)
        with pytest.raises(kafka.errors.InvalidReplicationAssignmentError):
            pure_admin.create_partitions({topic: {"count": 4, "assignments": [[4711]]}})


class TestConfigs:
    def test_defaults_of_a_topic(self, admin: AdminClient, topic: str) -> None:
        """A spot check of names and values that tools read."""
        entries = configs(admin, topic)
        expected = {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.ms": "604800000",
            "retention.bytes": "-1",
            "segment.bytes": "1073741824",
            "segment.ms": "604800000",
            "max.message.bytes": "1048588",
            "min.insync.replicas": "1",
            "message.timestamp.type": "CreateTime",
            "index.interval.bytes": "4096",
            "delete.retention.ms": "86400000",
            "min.cleanable.dirty.ratio": "0.5",
            "unclean.leader.election.enable": "false",
            "file.delete.delay.ms": "60000",
            "flush.messages": "9223372036854775807",
            "segment.index.bytes": "10485760",
            "segment.jitter.ms": "0",
            "preallocate": "false",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": "9223372036854775807",
            "message.timestamp.before.max.ms": "9223372036854775807",
            "message.timestamp.after.max.ms": "3600000",
        }
        assert {name: entries[name].value for name in expected} == expected
        assert {entries[name].is_read_only for name in expected} == {False}
        assert entries["retention.ms"].is_default

    def test_set_append_subtract_delete(self, admin: AdminClient, topic: str) -> None:
        answer_of(alter(admin, topic, ("retention.ms", AlterConfigOpType.SET, "5000")))
        eventually(lambda: configs(admin, topic)["retention.ms"].value == "5000")
        assert not configs(admin, topic)["retention.ms"].is_default
        answer_of(alter(admin, topic, ("cleanup.policy", AlterConfigOpType.APPEND, "compact")))
        eventually(lambda: configs(admin, topic)["cleanup.policy"].value == "delete,compact")
        assert configs(admin, topic)["retention.ms"].value == "5000", (
            "an incremental change leaves others alone"
        )
        answer_of(alter(admin, topic, ("cleanup.policy", AlterConfigOpType.SUBTRACT, "delete")))
        eventually(lambda: configs(admin, topic)["cleanup.policy"].value == "compact")
        answer_of(alter(admin, topic, ("retention.ms", AlterConfigOpType.DELETE, None)))
        eventually(lambda: configs(admin, topic)["retention.ms"].value == "604800000")

    @pytest.mark.parametrize(
        ("name", "operation", "value"),
        [
            ("no.such.setting", AlterConfigOpType.SET, "1"),
            ("retention.ms", AlterConfigOpType.SET, "soon"),
            ("retention.ms", AlterConfigOpType.APPEND, "1"),
            ("cleanup.policy", AlterConfigOpType.APPEND, "burn"),
        ],
    )
    def test_bad_changes(
        self, name: str, operation: AlterConfigOpType, value: str, admin: AdminClient, topic: str
    ) -> None:
        assert error_of(alter(admin, topic, (name, operation, value))).code() == KafkaError.INVALID_CONFIG

    def test_all_or_nothing(self, admin: AdminClient, topic: str) -> None:
        changes = alter(
            admin,
            topic,
            ("retention.ms", AlterConfigOpType.SET, "1"),
            ("segment.ms", AlterConfigOpType.SET, "no"),
        )
        assert error_of(changes).code() == KafkaError.INVALID_CONFIG
        assert configs(admin, topic)["retention.ms"].is_default

    def test_validate_only(self, admin: AdminClient, topic: str) -> None:
        answer_of(alter(admin, topic, ("retention.ms", AlterConfigOpType.SET, "5000"), validate_only=True))
        assert configs(admin, topic)["retention.ms"].is_default

    def test_unknown_topic(self, admin: AdminClient) -> None:
        missing = new_name("missing")
        assert error_of(alter(admin, missing, ("retention.ms", AlterConfigOpType.SET, "1"))).code() == (
            KafkaError.UNKNOWN_TOPIC_OR_PART
        )
        error = error_of(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, missing)]))
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_synonyms_tell_where_a_value_comes_from(self, admin: AdminClient, make_topic: TopicMaker) -> None:
        entry = configs(admin, make_topic(retention_ms="777"))["retention.ms"]
        assert (entry.value, entry.source) == ("777", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)  # type: ignore[comparison-overlap]
        assert next(iter(entry.synonyms)) == "retention.ms"

    def test_broker_settings(self, admin: AdminClient) -> None:
        broker = next(iter(admin.list_topics(timeout=5).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        entries = answer_of(admin.describe_configs([resource]))
        assert entries["num.partitions"].value == "4"
        assert entries["log.segment.bytes"].value == "1073741824"
        assert entries["message.max.bytes"].value == "1048588"

    def test_kafka_python(self, pure_admin: KafkaAdminClient, make_topic: TopicMaker) -> None:
        name = make_topic(max_message_bytes="123456")
        resource = PurePythonConfigResource("TOPIC", name)
        described = pure_admin.describe_configs([resource])["topic"][name]
        assert described["max.message.bytes"]["value"] == "123456"
        pure_admin.alter_configs([PurePythonConfigResource("TOPIC", name, configs={"retention.ms": "4242"})])
        everything = PurePythonConfigResource("TOPIC", name)

        def changed() -> bool:
            entries = pure_admin.describe_configs([everything], config_filter="all")["topic"][name]
            return bool(entries["retention.ms"]["value"] == "4242")

        eventually(changed)

    def test_the_older_request_replaces_all(self, admin: AdminClient, make_topic: TopicMaker) -> None:
        """AlterConfigs (not incremental) forgets what it does not name."""
        name = make_topic(max_message_bytes="123456", retention_ms="5000")
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, set_config={"retention.ms": "6000"})
        answer_of(admin.alter_configs([resource]))
        eventually(lambda: configs(admin, name)["retention.ms"].value == "6000")
        assert configs(admin, name)["max.message.bytes"].value == "1048588"


class TestRecordsAndOffsets:
    def test_delete_records(self, admin: AdminClient, topic: str, bootstrap: str) -> None:
        assert not any(
            send(producer(bootstrap), topic, [Message(value=b"%d" % number) for number in range(10)])
        )
        deleted = answer_of(admin.delete_records([TopicPartition(topic, 0, 4)]))
        assert deleted.low_watermark == 4
        assert self.offset(admin, topic, OffsetSpec.earliest()).offset == 4
        everything = answer_of(admin.delete_records([TopicPartition(topic, 0, -1)]))
        assert everything.low_watermark == 10
        assert self.offset(admin, topic, OffsetSpec.earliest()).offset == 10

    def test_delete_records_out_of_range(self, admin: AdminClient, topic: str) -> None:
        error = error_of(admin.delete_records([TopicPartition(topic, 0, 4)]))
        assert error.code() == KafkaError.OFFSET_OUT_OF_RANGE

    def test_delete_records_kafka_python(
        self, pure_admin: KafkaAdminClient, admin: AdminClient, topic: str, bootstrap: str
    ) -> None:
        assert not any(
            send(producer(bootstrap), topic, [Message(value=b"%d" % number) for number in range(3)])
        )
        partition = PurePythonTopicPartition(topic, 0)
        assert pure_admin.delete_records({partition: 2})[partition]["low_watermark"] == 2
        assert self.offset(admin, topic, OffsetSpec.earliest()).offset == 2

    @staticmethod
    def offset(admin: AdminClient, topic: str, spec: OffsetSpec) -> Any:
        return answer_of(admin.list_offsets({TopicPartition(topic, 0): spec}))

    def test_list_offsets(self, admin: AdminClient, topic: str, bootstrap: str) -> None:
        """The record of the highest time is neither the first nor the last."""
        times_ms = [1_700_000_000_000 + delta for delta in (0, 5000, 9000, 3000)]
        client = producer(bootstrap, batch_num_messages=1)
        messages = [Message(value=b"%d" % index, timestamp_ms=at) for index, at in enumerate(times_ms)]
        assert not any(send(client, topic, messages))
        assert self.offset(admin, topic, OffsetSpec.earliest()).offset == 0
        assert self.offset(admin, topic, OffsetSpec.latest()).offset == 4
        highest = self.offset(admin, topic, OffsetSpec.max_timestamp())
        assert (highest.offset, highest.timestamp) == (2, times_ms[2])
        by_time = self.offset(admin, topic, OffsetSpec.for_timestamp(times_ms[1] - 1))
        assert (by_time.offset, by_time.timestamp) == (1, times_ms[1])
        assert self.offset(admin, topic, OffsetSpec.for_timestamp(times_ms[2] + 1)).offset == -1

    def test_max_timestamp_within_a_batch(self, admin: AdminClient, topic: str, bootstrap: str) -> None:
        times_ms = [1_700_000_000_000 + delta for delta in (0, 9000, 5000)]
        client = producer(bootstrap, linger_ms=200, compression_type="snappy")
        messages = [Message(value=b"%d" % index, timestamp_ms=at) for index, at in enumerate(times_ms)]
        assert not any(send(client, topic, messages))
        highest = self.offset(admin, topic, OffsetSpec.max_timestamp())
        assert (highest.offset, highest.timestamp) == (1, times_ms[1])

    def test_max_timestamp_of_nothing(self, admin: AdminClient, topic: str) -> None:
        nothing = self.offset(admin, topic, OffsetSpec.max_timestamp())
        assert (nothing.offset, nothing.timestamp) == (-1, -1)

    def test_kafka_python_list_offsets(
        self, pure_admin: KafkaAdminClient, topic: str, bootstrap: str
    ) -> None:
        times_ms = [1_700_000_000_000, 1_700_000_009_000, 1_700_000_001_000]
        messages = [Message(value=b"x", timestamp_ms=at) for at in times_ms]
        assert not any(send(producer(bootstrap, batch_num_messages=1), topic, messages))
        partition = PurePythonTopicPartition(topic, 0)
        expected = {
            PurePythonOffsetSpec.EARLIEST: 0,
            PurePythonOffsetSpec.LATEST: 3,
            PurePythonOffsetSpec.MAX_TIMESTAMP: 1,
            times_ms[0] + 1: 1,
        }
        for spec, offset in expected.items():
            assert pure_admin.list_partition_offsets({partition: spec})[partition].offset == offset, spec


class TestCluster:
    def test_describe_cluster(self, admin: AdminClient, bootstrap: str) -> None:
        described = admin.describe_cluster(request_timeout=10).result(10)
        assert described.cluster_id
        assert [f"{node.host}:{node.port}" for node in described.nodes] == [bootstrap]
        assert described.controller.id == described.nodes[0].id

    def test_kafka_python(self, pure_admin: KafkaAdminClient, admin: AdminClient) -> None:
        described = pure_admin.describe_cluster()
        confluent = admin.describe_cluster(request_timeout=10).result(10)
        assert described["cluster_id"] == confluent.cluster_id
        assert described["controller_id"] == confluent.controller.id
        assert len(described["brokers"]) == 1

    def test_log_dirs(self, pure_admin: KafkaAdminClient, topic: str, bootstrap: str) -> None:
        assert not any(send(producer(bootstrap), topic, [Message(value=bytes(5000))]))
        (broker,) = pure_admin.describe_log_dirs({topic: [0]})
        sizes = [
            partition["partition_size"]
            for log_dir in broker["log_dirs"]
            for described in log_dir["topics"]
            if described["name"] == topic
            for partition in described["partitions"]
        ]
        assert len(sizes) == 1
        assert 5000 < sizes[0] < 6000

    def test_kcat_lists_metadata(self, bootstrap: str, make_topic: TopicMaker) -> None:
        name = make_topic(3)
        listed = run_kcat("-L", "-b", bootstrap, "-t", name).decode()
        assert f'topic "{name}" with 3 partitions' in listed
        assert f"at {bootstrap}" in listed
        assert listed.count("isrs:") == 3

    def test_describe_producers(self, pure_admin: KafkaAdminClient, topic: str, bootstrap: str) -> None:
        client = producer(bootstrap, enable_idempotence=True, batch_num_messages=1)
        assert not any(send(client, topic, [Message(value=b"%d" % number) for number in range(3)]))
        partition = PurePythonTopicPartition(topic, 0)
        (state,) = pure_admin.describe_producers([partition])[partition].active_producers
        assert (state.last_sequence, state.producer_epoch) == (2, 0)
