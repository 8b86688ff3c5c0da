"""Keys land on the partition where Kafka would put them, whichever client chose it.

Clients choose the partition, but from the partition count that the broker's metadata gives them. The hashes
are computed here once more, from their definitions, so that a client's mistake would show as well.
"""

import zlib
from collections.abc import Callable

import pytest

from tests.conformance.drivers.confluent import producer, read_all, send
from tests.conformance.drivers.contract import ANY_PARTITION, Driver, Message, TopicMaker
from tests.conformance.drivers.kcat import KEY_DELIMITER, MESSAGE_DELIMITER, run_kcat

PARTITION_COUNT = 7  # a prime, so that no low bits of a hash decide alone
KEYS = [
    *(b"%d" % number for number in range(40)),
    *(b"customer-%04d" % (number * 37) for number in range(40)),
    *(bytes(range(length)) for length in range(1, 20)),  # each tail length of murmur2's four-byte blocks
    b"\xff" * 9,
    "straße 世界".encode(),
]
MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Austin Appleby's 32-bit MurmurHash2 with the seed that Kafka's Java client uses."""
    multiplier, shift = 0x5BD1E995, 24
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for position in range(0, whole, 4):
        block = int.from_bytes(data[position : position + 4], "little") * multiplier & MASK
        block = (block ^ block >> shift) * multiplier & MASK
        value = (value * multiplier & MASK) ^ block
    if tail := data[whole:]:
        value = (value ^ int.from_bytes(tail, "little")) * multiplier & MASK
    value = (value ^ value >> 13) * multiplier & MASK
    return value ^ value >> 15


def fnv1a(data: bytes) -> int:
    """32-bit FNV-1a, read as a signed number without its sign: Sarama's choice, which librdkafka follows."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & MASK
    return value if value < 1 << 31 else (1 << 32) - value


def by_murmur2(key: bytes) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % PARTITION_COUNT


def by_crc32(key: bytes) -> int:
    return zlib.crc32(key) % PARTITION_COUNT


def by_fnv1a(key: bytes) -> int:
    return fnv1a(key) % PARTITION_COUNT


LIBRDKAFKA_PARTITIONERS = {
    "consistent": by_crc32,
    "consistent_random": by_crc32,
    "murmur2": by_murmur2,
    "murmur2_random": by_murmur2,
    "fnv1a": by_fnv1a,
    "fnv1a_random": by_fnv1a,
}


def keyed(keys: list[bytes]) -> list[Message]:
    return [Message(value=key, key=key, partition=ANY_PARTITION) for key in keys]


def landed(bootstrap: str, topic: str, count: int) -> dict[bytes | None, int]:
    return {message.key: message.partition for message in read_all(bootstrap, topic, count, PARTITION_COUNT)}


def test_murmur2_is_the_one_of_kafka() -> None:
    # Known answers of Kafka's own Utils.murmur2, as signed numbers in its tests.
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in known} == {key: answer & MASK for key, answer in known.items()}


@pytest.mark.parametrize("partitioner", LIBRDKAFKA_PARTITIONERS)
def test_librdkafka_partitioners(partitioner: str, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(PARTITION_COUNT)
    expected = LIBRDKAFKA_PARTITIONERS[partitioner]
    assert not any(send(producer(bootstrap, partitioner=partitioner), topic, keyed(KEYS)))
    assert landed(bootstrap, topic, len(KEYS)) == {key: expected(key) for key in KEYS}


@pytest.mark.parametrize("partitioner", ["consistent", "murmur2"])
def test_consistent_partitioners_keep_keyless_messages_together(
    partitioner: str, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic(PARTITION_COUNT)
    client = producer(bootstrap, partitioner=partitioner)
    assert not any(
        send(client, topic, [Message(value=b"%d" % n, partition=ANY_PARTITION) for n in range(50)])
    )
    received = read_all(bootstrap, topic, 50, PARTITION_COUNT)
    assert {message.partition for message in received} == {LIBRDKAFKA_PARTITIONERS[partitioner](b"")}


@pytest.mark.parametrize("partitioner", ["random", "consistent_random", "murmur2_random", "fnv1a_random"])
def test_random_partitioners_spread_keyless_messages(
    partitioner: str, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic(PARTITION_COUNT)
    client = producer(bootstrap, partitioner=partitioner, sticky_partitioning_linger_ms=0)
    count = 300  # a partition stays empty by chance once in 10^20 runs
    assert not any(
        send(client, topic, [Message(value=b"%d" % n, partition=ANY_PARTITION) for n in range(count)])
    )
    received = read_all(bootstrap, topic, count, PARTITION_COUNT)
    assert {message.partition for message in received} == set(range(PARTITION_COUNT))


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", "kafkajs"])
def test_default_partitioner_is_murmur2(
    client: str, bootstrap: str, make_topic: TopicMaker, find_driver: Callable[[str], Driver]
) -> None:
    driver = find_driver(client)
    topic = make_topic(PARTITION_COUNT)
    driver.produce(bootstrap, topic, keyed(KEYS))
    assert landed(bootstrap, topic, len(KEYS)) == {key: by_murmur2(key) for key in KEYS}


@pytest.mark.parametrize(
    ("options", "expected"), [((), by_crc32), (("-X", "partitioner=murmur2"), by_murmur2)]
)
def test_kcat_partitioners(
    options: tuple[str, ...], expected: Callable[[bytes], int], bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic(PARTITION_COUNT)
    framed = b"".join(key + KEY_DELIMITER.encode() + key + MESSAGE_DELIMITER.encode() for key in KEYS)
    run_kcat(
        "-P",
        "-b",
        bootstrap,
        "-t",
        topic,
        "-K",
        KEY_DELIMITER,
        "-D",
        MESSAGE_DELIMITER,
        *options,
        stdin=framed,
    )
    assert landed(bootstrap, topic, len(KEYS)) == {key: expected(key) for key in KEYS}


def test_added_partitions_are_used(
    bootstrap: str, make_topic: TopicMaker, find_driver: Callable[[str], Driver]
) -> None:
    """After a topic grows, a new client sees the new count and hashes over it."""
    from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

    topic = make_topic(2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, PARTITION_COUNT)])[topic].result(10)
    find_driver("kafka-python").produce(bootstrap, topic, keyed(KEYS))
    assert landed(bootstrap, topic, len(KEYS)) == {key: by_murmur2(key) for key in KEYS}
