"""The Java client: admin, every codec and acks value, the default partitioner, groups."""

import base64
from collections.abc import Callable

import pytest

from tests.conformance.drivers.confluent import read_all
from tests.conformance.drivers.contract import (
    ALL_ACKS,
    ALL_CODECS,
    Driver,
    Headers,
    Message,
    TopicMaker,
    new_name,
)
from tests.conformance.drivers.java import run_java
from tests.conformance.test_conformance_partitioners import murmur2

PARTITION_COUNT = 3
RECORD_COUNT = 12


def expected_messages() -> list[Message]:
    """What `produce` in Conformance.java sends, by partition and order."""
    messages = []
    for number in range(RECORD_COUNT):
        key = None if number % 3 == 2 else b"key-%d" % number
        headers: Headers = (("number", b"%d" % number), ("twice", b"\x00\xff"), ("twice", None))
        messages.append(
            Message(
                value=None if number % 4 == 3 else b"value-%d" % number,
                key=key,
                headers=headers,
                partition=0 if key is None else (murmur2(key) & 0x7FFFFFFF) % PARTITION_COUNT,
                timestamp_ms=1_700_000_000_000 + number,
            )
        )
    return sorted(messages, key=lambda message: message.partition)


def content(messages: list[Message]) -> list[tuple[object, ...]]:
    return [(message.partition, message.timestamp_ms, *message.content) for message in messages]


def decoded(text: str) -> bytes | None:
    return None if text == "null" else base64.b64decode(text)


def records_of(said: list[tuple[str, str]]) -> dict[str, list[Message]]:
    """The records that Conformance.java showed, by topic, each topic's by partition and offset."""
    found: dict[str, list[Message]] = {}
    for name, line in said:
        if name == "record":
            topic, partition, offset, timestamp_ms, key, value, *headers = line.split(" ")
            pairs = (header.split(":") for header in headers)
            message = Message(
                value=decoded(value),
                key=decoded(key),
                headers=tuple((header, decoded(data)) for header, data in pairs),
                partition=int(partition),
                timestamp_ms=int(timestamp_ms),
                offset=int(offset),
            )
            found.setdefault(topic, []).append(message)
    for messages in found.values():
        messages.sort(key=lambda message: (message.partition, message.offset))
    return found


def test_every_codec_and_acks(
    bootstrap: str, make_topics: Callable[..., None], find_driver: Callable[[str], Driver]
) -> None:
    """Java writes, confluent-kafka and kafka-python read the same; then Java reads what it wrote."""
    topics = {
        f"{codec}:{acks}": new_name(f"java-{codec}-{acks}") for codec in ALL_CODECS for acks in ALL_ACKS
    }
    make_topics(list(topics.values()), PARTITION_COUNT)
    run_java(bootstrap, "matrix", *(f"{form}:{topic}" for form, topic in topics.items()))
    expected = content(expected_messages())
    counts = dict.fromkeys(topics.values(), RECORD_COUNT)
    for client in ("confluent-kafka", "kafka-python"):
        received = find_driver(client).consume(bootstrap, counts, PARTITION_COUNT)
        for form, topic in topics.items():
            assert content(received[topic]) == expected, f"{form} read by {client}"
    said = run_java(bootstrap, "consume", ",".join(topics.values()), str(RECORD_COUNT * len(topics)))
    shown = records_of(said)
    for form, topic in topics.items():
        assert content(shown[topic]) == expected, f"{form} read by Java"
    assert dict(said)["end"] == str(RECORD_COUNT * len(topics))
    assert dict(said)["beginning"] == "0"


def test_reads_what_others_wrote(
    bootstrap: str, make_topics: Callable[..., None], find_driver: Callable[[str], Driver]
) -> None:
    messages = [
        Message(value=b"v%d" % n, key=b"k%d" % n, headers=(("h", b"\x00"),), partition=n % 3)
        for n in range(9)
    ]
    clients = ("confluent-kafka", "kafka-python", "aiokafka", "kafkajs")
    topics = {
        (client, codec): new_name(f"to-java-{client}-{codec}") for client in clients for codec in ALL_CODECS
    }
    make_topics(list(topics.values()), PARTITION_COUNT)
    for (client, codec), topic in topics.items():
        find_driver(client).produce(bootstrap, topic, messages, codec=codec)
    shown = records_of(
        run_java(bootstrap, "consume", ",".join(topics.values()), str(len(messages) * len(topics)))
    )
    wanted = [message.content for message in sorted(messages, key=lambda message: message.partition)]
    for writer, topic in topics.items():
        assert [message.content for message in shown[topic]] == wanted, writer


def test_admin(bootstrap: str) -> None:
    said = dict(run_java(bootstrap, "admin", new_name("java-admin")))
    assert said == {
        "created.partitions": "3",
        "created.replication": "1",
        "created.retention": "4711",
        "again": "TopicExistsException",
        "bad.name": "InvalidTopicException",
        "bad.replicas": "InvalidReplicationFactorException",
        "bad.config": "InvalidConfigurationException",
        "described.id": "true",
        "described.partitions": "3",
        "described.leaders": "true",
        "listed": "true",
        "config.retention": "4711",
        "config.source": "DYNAMIC_TOPIC_CONFIG",
        "config.default": "DEFAULT_CONFIG",
        "config.changed": "815",
        "offset.earliest": "0 -1",
        "offset.latest": "3 -1",
        "offset.max": "1 3000",
        "offset.time": "1 3000",
        "offset.deleted": "2 -1",
        "grown": "5",
        "cluster.nodes": "1",
        "cluster.controller": "true",
        "logdirs": "true",
        "producers": "1",
        "deleted": "UnknownTopicOrPartitionException",
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group(protocol: str, bootstrap: str, make_topic: TopicMaker) -> None:
    topic, group = make_topic(PARTITION_COUNT), new_name("java-group")
    run_java(bootstrap, "produce", topic, "none", "all", str(RECORD_COUNT))
    said = run_java(bootstrap, "group", protocol, group, topic, str(RECORD_COUNT))
    assert content(records_of(said)[topic]) == content(expected_messages())
    sizes = {message.partition: 0 for message in read_all(bootstrap, topic, RECORD_COUNT, PARTITION_COUNT)}
    for message in expected_messages():
        sizes[message.partition] += 1
    committed = dict(line.split(" ") for name, line in said if name == "committed")
    assert {int(partition): int(offset) for partition, offset in committed.items()} == sizes
