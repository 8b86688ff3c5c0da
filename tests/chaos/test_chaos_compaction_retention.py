"""Compaction and retention under load, judged by content.

A child process compacts and deletes as often as it can while a real client writes, deletes keys and reads.
At the end the table read from the start is the model's: the last value of every key, no deleted key, every
record at the offset it was acknowledged at. Producers must not stall, and consumers that fall behind
retention are told so.
"""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.crash_checks import EARLIEST, check_indexes, read_partition
from tests.chaos.kafka_wire import WireClient, batch_of
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "offsets.topic.num.partitions": "1",
}
KEYS = 300
LOAD_SECONDS = 6.0
STALL_SECONDS_MAX = 2.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("maintenance"), SETTINGS) as process:
        process.start()
        yield process


class TableWriter:
    """Writes random keys with confluent-kafka and remembers what was acknowledged where."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.topic = topic
        self.random = random.Random(seed)
        self.latest: dict[bytes, bytes | None] = {}
        self.at_offset: dict[int, tuple[bytes, bytes | None]] = {}
        self.failures: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "compression.type": "lz4",
                "batch.size": 10_000,
            }
        )
        self.number = 0

    def write(self) -> None:
        key = b"key-%d" % self.random.randrange(KEYS)
        self.number += 1
        deleted = self.random.random() < 0.15
        value = None if deleted else b"%d-" % self.number + bytes(self.random.randrange(200))

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self.failures.append(str(error))
                return
            self.at_offset[offset] = (key, value)

        self.latest[key] = value
        self.producer.produce(self.topic, value, key, on_delivery=delivered)
        self.producer.poll(0)


class Prober(threading.Thread):
    """Times one produce after the other on a topic of its own, as an unrelated client would feel it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.seconds: list[float] = []
        self.stopping = threading.Event()
        self._address = bootstrap
        self._topic = topic

    def run(self) -> None:
        with WireClient(self._address, timeout_seconds=30) as client:
            while not self.stopping.wait(0.002):
                begun = time.perf_counter()
                assert client.produce(self._topic, 0, batch_of(b"probe")).error == 0
                self.seconds.append(time.perf_counter() - begun)

    def finish(self) -> str:
        self.stopping.set()
        self.join(30)
        ordered = sorted(self.seconds)
        p99 = ordered[int(len(ordered) * 0.99)]
        return (
            f"{len(ordered)} produces: p50 {ordered[len(ordered) // 2] * 1000:.2f} ms, "
            f"p99 {p99 * 1000:.1f} ms, worst {ordered[-1] * 1000:.0f} ms"
        )


def read_table(bootstrap: str, topic: str) -> dict[int, tuple[bytes, bytes | None]]:
    """Everything a consumer sees from the start: (key, value) by offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    partition = TopicPartition(topic, 0, 0)
    low, high = consumer.get_watermark_offsets(partition, timeout=10)
    partition.offset = low
    consumer.assign([partition])
    found: dict[int, tuple[bytes, bytes | None]] = {}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for message in consumer.consume(5_000, timeout=0.3):
            assert message.error() is None
            key, offset = message.key(), message.offset()
            assert isinstance(key, bytes) and offset is not None
            value = message.value()
            found[offset] = (key, value if value is None or isinstance(value, bytes) else value.encode())
        position = consumer.position([partition])[0].offset
        if position >= high:
            break
    consumer.close()
    return found


def test_compaction_keeps_the_last_value_of_every_key(broker: BrokerProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic(
            "table",
            cleanup_policy="compact",
            segment_bytes="30000",
            segment_ms="700",
            min_cleanable_dirty_ratio="0.01",
            delete_retention_ms="300",
        )
        client.create_topic("probe")
    writer = TableWriter(broker.bootstrap, "table", seed=4)
    prober = Prober(broker.bootstrap, "probe")
    prober.start()
    deadline = time.monotonic() + LOAD_SECONDS
    readings = 0
    while time.monotonic() < deadline:
        for _ in range(100):
            writer.write()
        time.sleep(0.02)
        if writer.number % 5_000 == 0:
            # A reader in the middle of it all sees nothing that was not written there.
            check_offsets(read_table(broker.bootstrap, "table"), writer, complete=False)
            readings += 1
    assert writer.producer.flush(30) == 0 and not writer.failures
    figures = prober.finish()
    print(f"\nproducing beside compaction, {figures}; {writer.number} records, {readings} readings under way")
    check_offsets(read_table(broker.bootstrap, "table"), writer, complete=True)
    wait_until_tombstones_are_gone(broker, writer)
    final = read_table(broker.bootstrap, "table")
    check_offsets(final, writer, complete=True)
    assert len(final) < writer.number / 4, "it was compacted"
    assert broker.log_text().count("log compacted: topic=table partition=0") > 3
    check_indexes(broker.log_dirs[0] / "table-0", random.Random(0), everything=True)
    assert max(prober.seconds) < STALL_SECONDS_MAX
    assert broker.tracebacks() == []


def check_offsets(
    found: dict[int, tuple[bytes, bytes | None]], writer: TableWriter, *, complete: bool
) -> None:
    """No record moved or changed; when complete, every key has its last value."""
    for offset, record in found.items():
        assert writer.at_offset.get(offset, record) == record, f"another record at {offset}"
    if complete:
        table: dict[bytes, bytes | None] = {}
        for key, value in found.values():
            table[key] = value
        assert {k: v for k, v in table.items() if v is not None} == {
            k: v for k, v in writer.latest.items() if v is not None
        }


def wait_until_tombstones_are_gone(broker: BrokerProcess, writer: TableWriter) -> None:
    """Write a little to one key, so that segments roll, until all delete markers were compacted away."""
    deadline = time.monotonic() + 15
    while True:
        writer.latest[b"key-0"] = b"nudge-%d" % writer.number
        writer.number += 1
        writer.producer.produce("table", writer.latest[b"key-0"], b"key-0")
        assert writer.producer.flush(10) == 0
        found = read_table(broker.bootstrap, "table")
        markers = [key for key, value in found.values() if value is None]
        if not markers:
            return
        assert time.monotonic() < deadline, f"{len(markers)} delete markers are still there"
        time.sleep(0.4)


def write_table(client: WireClient, topic: str, count: int) -> bytes:
    """Many values of one key, in many segments; the last of them."""
    value = b""
    for number in range(count):
        value = b"%d-" % number + bytes(500)
        batch = build_batch([Record(0, time.time_ns() // 1_000_000, b"key", value)])
        assert client.produce(topic, 0, batch).error == 0
    return value


def wait_for_compaction(client: WireClient, topic: str, count_max: int, value: bytes) -> None:
    deadline = time.monotonic() + 20
    while len(records := list(read_partition(client, topic, 0, 0))) > count_max:
        assert time.monotonic() < deadline, f"{topic} was not compacted"
        time.sleep(0.1)
    assert records[-1].value == value


SMALL_TABLE: dict[str, Any] = {"segment_bytes": "20000", "min_cleanable_dirty_ratio": "0.01"}


def test_a_broker_with_more_than_1024_descriptors_compacts(broker: BrokerProcess) -> None:
    """select() cannot wait for descriptors of 1024 and more; a broker with as many partitions has them."""
    with WireClient(broker.bootstrap) as client:
        client.create_topic("many", 1_050)
        assert len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) > 1_024
        client.create_topic("small", cleanup_policy="compact", **SMALL_TABLE)
        wait_for_compaction(client, "small", 200, write_table(client, "small", 400))


def test_a_damaged_log_is_told_of_and_keeps_no_other_from_compaction(broker: BrokerProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic("damaged", **SMALL_TABLE)
        write_table(client, "damaged", 100)
        with (broker.log_dirs[0] / "damaged-0" / f"{0:020}.log").open("r+b") as segment:
            segment.seek(8)
            segment.write(b"\xff\xff\xff\xff")
        tidelog(broker, "config", "set", "topic", "damaged", "cleanup.policy=compact")
        told = ""
        deadline = time.monotonic() + 20
        while "cannot compact" not in told:
            assert time.monotonic() < deadline, told
            told = tidelog(broker, "doctor", "--watch", "0")
        assert "cannot compact 1 log, and what is superseded stays: damaged-0" in told
        client.create_topic("whole", cleanup_policy="compact", **SMALL_TABLE)
        wait_for_compaction(client, "whole", 60, write_table(client, "whole", 100))
        assert "cannot compact 1 log" in tidelog(broker, "doctor", "--watch", "0")


def tidelog(broker: BrokerProcess, *words: str) -> str:
    command = [sys.executable, "-m", "tidelog.cli", *words, "--bootstrap", broker.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


def test_retention_by_size_under_load(broker: BrokerProcess) -> None:
    """Old segments go, new records stay, offsets never change, slow consumers are told."""
    retention_bytes, segment_bytes = 200_000, 40_000
    with WireClient(broker.bootstrap) as client:
        client.create_topic("short", retention_bytes=str(retention_bytes), segment_bytes=str(segment_bytes))
        values: list[bytes] = []
        for number in range(1_500):
            value = b"%d-" % number + bytes(500)
            produced = client.produce("short", 0, batch_of(value))
            assert (produced.error, produced.base_offset) == (0, number)
            values.append(value)
            if number % 300 == 299:
                time.sleep(0.15)
        start = wait_for_deletion(client, "short")
        found = {record.offset: record.value for record in read_partition(client, "short", 0, start)}
        assert found == {offset: values[offset] for offset in range(start, 1_500)}
        kept_bytes = sum(len(values[offset]) for offset in found)
        assert retention_bytes * 0.8 < kept_bytes < retention_bytes + 3 * segment_bytes
    assert consumed_from(broker.bootstrap, "short", 0, "earliest")[0] >= start
    with pytest.raises(KafkaException) as refused:
        consumed_from(broker.bootstrap, "short", 0, "error")
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET


def test_retention_by_time_under_load(broker: BrokerProcess) -> None:
    """With a retention of a second and a writer at work, what is younger stays and what is older goes."""
    with WireClient(broker.bootstrap) as client:
        client.create_topic("brief", retention_ms="1000", segment_ms="200")
        written: list[tuple[float, bytes]] = []
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            value = b"%d" % len(written)
            assert client.produce("brief", 0, batch_of(value)).base_offset == len(written)
            written.append((time.monotonic(), value))
            time.sleep(0.003)
        start = client.list_offset("brief", 0, EARLIEST).offset
        now = time.monotonic()
        found = {record.offset: record.value for record in read_partition(client, "brief", 0, start)}
        assert found == {offset: written[offset][1] for offset in range(start, len(written))}
        assert start > 0 and now - written[start][0] > 0.9, "nothing younger than a second was deleted"
        assert now - written[start][0] < 3.0
        # When nobody writes any more, everything goes in the end, and the offsets go on where they were.
        wait_until_empty(client, "brief", len(written))
        assert client.produce("brief", 0, batch_of(b"next")).base_offset == len(written)


def wait_for_deletion(client: WireClient, topic: str) -> int:
    """The start of the log once it stopped moving."""
    deadline = time.monotonic() + 10
    last = -1
    while time.monotonic() < deadline:
        start = int(client.list_offset(topic, 0, EARLIEST).offset)
        if start == last and start > 0:
            return start
        last = start
        time.sleep(0.3)
    raise AssertionError("retention deleted nothing")


def wait_until_empty(client: WireClient, topic: str, end: int) -> None:
    deadline = time.monotonic() + 10
    while client.list_offset(topic, 0, EARLIEST).offset != end:
        assert time.monotonic() < deadline, "old records stay although nobody writes"
        time.sleep(0.1)


def consumed_from(bootstrap: str, topic: str, offset: int, reset: str) -> tuple[int, int]:
    """Offset of the first record a consumer gets that asks for `offset`, and how many came."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "late", "auto.offset.reset": reset, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            messages = consumer.consume(100, timeout=1.0)
            for message in messages:
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
            if messages:
                first = messages[0].offset()
                assert first is not None
                return first, len(messages)
    finally:
        consumer.close()
    raise AssertionError("nothing came")
