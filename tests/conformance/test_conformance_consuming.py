"""Reading: positions, resets, seeking, pausing, limits of a fetch, long polls. Standalone consumers only."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import NoOffsetForPartitionError as AioNoOffset
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka import TopicPartition as PurePythonTopicPartition
from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

from tests.conformance.drivers.confluent import consumer, poll_messages, producer, send
from tests.conformance.drivers.contract import DEADLINE_SECONDS, Message, TopicMaker
from tests.conformance.drivers.kcat import FORMAT, parse_output, run_kcat
from tests.conformance.drivers.pure_python import poll_messages as poll_pure_python

FIRST_TIMESTAMP_MS = 1_700_000_000_000
Produce = Callable[..., list[Message]]


@pytest.fixture
def produce(bootstrap: str) -> Produce:
    """Write numbered messages, one second apart, each a batch of its own, and return them."""

    def run(
        topic: str, count: int, *, first: int = 0, partition: int = 0, size_bytes: int = 0
    ) -> list[Message]:
        messages = [
            Message(
                value=(b"%d " % number).ljust(size_bytes, b"."),
                partition=partition,
                timestamp_ms=FIRST_TIMESTAMP_MS + number * 1000,
            )
            for number in range(first, first + count)
        ]
        client = producer(bootstrap, batch_num_messages=1, message_max_bytes=4_000_000)
        assert not any(send(client, topic, messages))
        return messages

    return run


@pytest.fixture
def reader(bootstrap: str) -> Iterator[Callable[..., Consumer]]:
    """Consumers that are closed at the end of the test."""
    opened: list[Consumer] = []

    def make(**settings: object) -> Consumer:
        opened.append(consumer(bootstrap, **settings))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def numbers(messages: list[tuple[str, Message]]) -> list[int]:
    return [int((message.value or b"").split()[0]) for _, message in messages]


def error_of(client: Consumer, deadline_seconds: float = DEADLINE_SECONDS) -> KafkaError:
    """The first error event of the consumer; a message before it fails the test."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        event = client.poll(0.2)
        if event is not None:
            error = event.error()
            assert error is not None, f"got a message at {event.offset()}"
            return error
    raise AssertionError("no error came")


class TestPositions:
    """Where reading starts."""

    @pytest.mark.parametrize(("start", "expected"), [(0, 0), (4, 4), (9, 9), (OFFSET_BEGINNING, 0)])
    def test_from_an_offset(
        self, start: int, expected: int, topic: str, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        produce(topic, 10)
        client = reader()
        client.assign([TopicPartition(topic, 0, start)])
        assert numbers(poll_messages(client, 10 - expected)) == list(range(expected, 10))

    def test_from_inside_a_batch(self, topic: str, bootstrap: str, reader: Callable[..., Consumer]) -> None:
        """The broker answers with the whole batch; the client drops what comes before its offset."""
        batching = producer(bootstrap, linger_ms=200, compression_type="gzip")
        assert not any(send(batching, topic, [Message(value=b"%d" % number) for number in range(20)]))
        client = reader()
        client.assign([TopicPartition(topic, 0, 13)])
        received = poll_messages(client, 7)
        assert [message.offset for _, message in received] == list(range(13, 20))
        assert numbers(received) == list(range(13, 20))

    def test_from_the_end(self, topic: str, produce: Produce, reader: Callable[..., Consumer]) -> None:
        produce(topic, 5)
        client = reader(enable_partition_eof=True)
        client.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert error_of(client).code() == KafkaError._PARTITION_EOF
        produce(topic, 2, first=5)
        assert numbers(poll_messages(client, 2)) == [5, 6]

    def test_watermarks(self, topic: str, produce: Produce, reader: Callable[..., Consumer]) -> None:
        client = reader()
        partition = TopicPartition(topic, 0)
        assert client.get_watermark_offsets(partition, timeout=5) == (0, 0)
        produce(topic, 5)
        assert client.get_watermark_offsets(partition, timeout=5) == (0, 5)

    @pytest.mark.parametrize(
        ("after_ms", "offset"), [(-1, 0), (0, 0), (1, 1), (3000, 3), (3500, 4), (9000, 9), (9001, OFFSET_END)]
    )
    def test_by_timestamp(
        self, after_ms: int, offset: int, topic: str, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        """The first record at the time or after it."""
        produce(topic, 10)
        found = reader().offsets_for_times(
            [TopicPartition(topic, 0, FIRST_TIMESTAMP_MS + after_ms)], timeout=5
        )
        assert found[0].offset == offset

    def test_by_timestamp_within_a_batch(self, topic: str, bootstrap: str) -> None:
        """Times that fall and rise: the earliest offset whose time is late enough."""
        times_ms = [FIRST_TIMESTAMP_MS + delta for delta in (5000, 1000, 9000, 2000, 9500)]
        messages = [Message(value=b"%d" % index, timestamp_ms=at) for index, at in enumerate(times_ms)]
        assert not any(send(producer(bootstrap, linger_ms=200, compression_type="zstd"), topic, messages))
        client = KafkaConsumer(bootstrap_servers=bootstrap)
        partition = PurePythonTopicPartition(topic, 0)
        try:
            found = client.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 6000})[partition]
            assert (found.offset, found.timestamp) == (2, times_ms[2])
            assert client.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 1})[partition].offset == 0
            assert client.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 60_000})[partition] is None
        finally:
            client.close()

    def test_kcat_positions(self, topic: str, bootstrap: str, produce: Produce) -> None:
        produce(topic, 10)
        common = ("-C", "-q", "-e", "-b", bootstrap, "-t", topic, "-f", FORMAT)
        expected = {
            ("-o", "beginning"): range(10),
            ("-o", "6"): range(6, 10),
            ("-o", "-3"): range(7, 10),
            ("-o", f"s@{FIRST_TIMESTAMP_MS + 4000}", "-o", f"e@{FIRST_TIMESTAMP_MS + 7000}"): range(4, 7),
        }
        for options, offsets in expected.items():
            output = parse_output(run_kcat(*common, *options))
            assert [message.offset for message in output] == list(offsets), options
        query = run_kcat("-Q", "-b", bootstrap, "-t", f"{topic}:0:{FIRST_TIMESTAMP_MS + 2500}")
        assert query.split() == f"{topic} [0] offset 3".encode().split()


class TestReset:
    """auto.offset.reset, where there is no committed offset or the offset is out of range."""

    @pytest.mark.parametrize(("policy", "expected"), [("earliest", [0, 1, 2, 3]), ("latest", [3])])
    def test_without_an_offset(
        self, policy: str, expected: list[int], topic: str, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        produce(topic, 3)
        client = reader(auto_offset_reset=policy, enable_partition_eof=True, group_id=f"reset-{topic}")
        client.assign([TopicPartition(topic, 0)])
        received = []
        while (event := client.poll(DEADLINE_SECONDS)) is not None and event.error() is None:
            received.append(int(event.value()))  # type: ignore[arg-type]
        produce(topic, 1, first=3)
        assert received + numbers(poll_messages(client, 1)) == expected

    def test_error_without_an_offset(self, topic: str, reader: Callable[..., Consumer]) -> None:
        client = reader(auto_offset_reset="error", group_id=f"reset-{topic}")
        client.assign([TopicPartition(topic, 0)])
        assert error_of(client).code() == KafkaError._AUTO_OFFSET_RESET

    @pytest.mark.parametrize(("policy", "expected"), [("earliest", 0), ("latest", 3)])
    def test_beyond_the_end(
        self, policy: str, expected: int, topic: str, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        produce(topic, 3)
        client = reader(auto_offset_reset=policy, enable_partition_eof=True)
        client.assign([TopicPartition(topic, 0, 1000)])
        event = client.poll(DEADLINE_SECONDS)
        assert event is not None
        if policy == "latest":
            assert event.error().code() == KafkaError._PARTITION_EOF  # type: ignore[union-attr]
        else:
            assert event.error() is None
        assert event.offset() == expected

    def test_error_beyond_the_end(
        self, topic: str, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        produce(topic, 3)
        client = reader(auto_offset_reset="error")
        client.assign([TopicPartition(topic, 0, 1000)])
        assert error_of(client).code() == KafkaError._AUTO_OFFSET_RESET

    def test_kafka_python_raises(self, topic: str, bootstrap: str, produce: Produce) -> None:
        produce(topic, 3)
        client = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", group_id=None)
        partition = PurePythonTopicPartition(topic, 0)
        try:
            client.assign([partition])
            with pytest.raises(NoOffsetForPartitionError):
                client.poll(timeout_ms=5000)
            client.seek(partition, 1000)
            with pytest.raises(OffsetOutOfRangeError):
                for _ in range(20):
                    client.poll(timeout_ms=500)
        finally:
            client.close()

    def test_aiokafka_raises(self, topic: str, bootstrap: str, produce: Produce) -> None:
        produce(topic, 3)

        async def read() -> None:
            client = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", group_id=None)
            await client.start()
            try:
                client.assign([AioTopicPartition(topic, 0)])
                with pytest.raises(AioNoOffset):
                    await asyncio.wait_for(client.getone(), 5)
            finally:
                await client.stop()

        asyncio.run(read())

    def test_below_the_log_start(
        self, topic: str, admin: AdminClient, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        produce(topic, 6)
        admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(10)
        client = reader(auto_offset_reset="earliest")
        client.assign([TopicPartition(topic, 0, 1)])
        assert numbers(poll_messages(client, 2)) == [4, 5]


class TestControl:
    """Seeking, pausing, several partitions."""

    def test_seek(self, topic: str, produce: Produce, reader: Callable[..., Consumer]) -> None:
        produce(topic, 10)
        client = reader()
        client.assign([TopicPartition(topic, 0, 0)])
        assert numbers(poll_messages(client, 3)) == [0, 1, 2]
        client.seek(TopicPartition(topic, 0, 8))
        assert numbers(poll_messages(client, 2)) == [8, 9]
        client.seek(TopicPartition(topic, 0, 1))
        assert numbers(poll_messages(client, 2)) == [1, 2]

    def test_pause_and_resume(
        self, make_topic: TopicMaker, produce: Produce, reader: Callable[..., Consumer]
    ) -> None:
        topic = make_topic(2)
        client = reader(enable_partition_eof=True)
        quiet, loud = TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)
        client.assign([quiet, loud])
        client.pause([quiet])
        produce(topic, 3, partition=0)
        produce(topic, 3, partition=1)
        seen = []
        while (event := client.poll(0.5)) is not None:
            if event.error() is None:
                seen.append(event.partition())
        assert seen == [1, 1, 1]
        client.resume([quiet])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(seen) < 6 and time.monotonic() < deadline:
            event = client.poll(0.5)
            if event is not None and event.error() is None:
                seen.append(event.partition())
        assert seen == [1, 1, 1, 0, 0, 0]

    def test_kafka_python_assign_seek_pause(self, topic: str, bootstrap: str, produce: Produce) -> None:
        produce(topic, 6)
        client = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=100)
        partition = PurePythonTopicPartition(topic, 0)
        try:
            client.assign([partition])
            client.seek_to_beginning(partition)
            assert numbers(poll_pure_python(client, 6)) == list(range(6))
            client.seek(partition, 4)
            client.pause(partition)
            assert client.poll(timeout_ms=300) == {}
            client.resume(partition)
            assert numbers(poll_pure_python(client, 2)) == [4, 5]
            assert client.beginning_offsets([partition]) == {partition: 0}
            assert client.end_offsets([partition]) == {partition: 6}
        finally:
            client.close()

    def test_unknown_partition(self, topic: str, reader: Callable[..., Consumer]) -> None:
        with pytest.raises(KafkaException) as raised:
            reader().get_watermark_offsets(TopicPartition(topic, 5), timeout=5)
        assert raised.value.args[0].code() in (
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )

    def test_unknown_topic_is_not_made_by_reading(
        self, bootstrap: str, reader: Callable[..., Consumer]
    ) -> None:
        client = reader()
        with pytest.raises(KafkaException) as raised:
            client.get_watermark_offsets(TopicPartition("no-such-topic-anywhere", 0), timeout=5)
        assert raised.value.args[0].code() in (
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        assert "no-such-topic-anywhere" not in client.list_topics(timeout=5).topics


class TestLimits:
    """Sizes and waits of a fetch."""

    def test_small_fetches_serve_all_partitions_in_turn(
        self, make_topic: TopicMaker, bootstrap: str, reader: Callable[..., Consumer]
    ) -> None:
        """With room for one batch an answer, no partition waits for another to be read to its end."""
        partitions, each = 12, 20
        topic = make_topic(partitions)
        messages = [
            Message(value=(b"%d " % number).ljust(1000, b"."), partition=partition)
            for number in range(each)
            for partition in range(partitions)
        ]
        assert not any(send(producer(bootstrap, batch_num_messages=1), topic, messages))
        # On Apache Kafka, too, this client leaves a partition out until another is read, once in sixty times.
        assert any(self._read_in_turn(reader, topic, partitions, len(messages)) for _ in range(3))

    def _read_in_turn(self, reader: Callable[..., Consumer], topic: str, partitions: int, count: int) -> bool:
        client = reader(
            fetch_max_bytes=1500,
            fetch_message_max_bytes=1500,
            queued_max_messages_kbytes=1,
            message_max_bytes=1000,
            fetch_queue_backoff_ms=0,
        )
        client.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        received = [message for _, message in poll_messages(client, count, 2 * DEADLINE_SECONDS)]
        assert len(received) == count
        places = [
            [index for index, message in enumerate(received) if message.partition == partition]
            for partition in range(partitions)
        ]
        for of_partition in places:
            offsets = [received[index].offset for index in of_partition]
            assert offsets == list(range(count // partitions))
        return max(map(min, places)) < min(map(max, places))

    @pytest.mark.parametrize("size_bytes", [100_000, 900_000])
    def test_a_message_above_the_limits_still_arrives(
        self, size_bytes: int, topic: str, bootstrap: str, produce: Produce
    ) -> None:
        sent = produce(topic, 3, size_bytes=size_bytes)
        client = KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, fetch_max_bytes=1000, max_partition_fetch_bytes=1000
        )
        partition = PurePythonTopicPartition(topic, 0)
        try:
            client.assign([partition])
            client.seek_to_beginning(partition)
            received = poll_pure_python(client, 3)
            assert [message.value for _, message in received] == [message.value for message in sent]
        finally:
            client.close()

    def test_a_record_produced_during_the_wait_arrives_at_once(
        self, topic: str, bootstrap: str, reader: Callable[..., Consumer]
    ) -> None:
        """The long poll is 10 s; each record must cut it short. The best of five: the machine may be busy."""
        client = reader(fetch_wait_max_ms=10_000, fetch_min_bytes=1, socket_timeout_ms=60_000)
        client.assign([TopicPartition(topic, 0, 0)])
        writer = producer(bootstrap)
        delays = []
        for number in range(5):
            assert client.poll(0.3) is None, "nothing was produced yet"
            assert not any(send(writer, topic, [Message(value=b"%d" % number)]))
            started = time.monotonic()
            assert numbers(poll_messages(client, 1)) == [number]
            delays.append(time.monotonic() - started)
        assert max(delays) < 5, delays
        assert min(delays) < 0.25, delays

    def test_min_bytes_holds_the_answer_back(
        self, topic: str, bootstrap: str, reader: Callable[..., Consumer]
    ) -> None:
        """Too few bytes wait until the limit of time; enough bytes end the wait."""
        client = reader(fetch_wait_max_ms=1500, fetch_min_bytes=50_000)
        client.assign([TopicPartition(topic, 0, 0)])
        assert client.poll(0.3) is None
        writer = producer(bootstrap)
        assert not any(send(writer, topic, [Message(value=b"0 small")]))
        assert client.poll(0.4) is None, "one small record is less than fetch.min.bytes"
        assert numbers(poll_messages(client, 1)) == [0]
        patient = reader(fetch_wait_max_ms=15_000, fetch_min_bytes=50_000, socket_timeout_ms=60_000)
        patient.assign([TopicPartition(topic, 0, 1)])
        assert patient.poll(0.3) is None
        started = time.monotonic()
        assert not any(send(writer, topic, [Message(value=b"1 " + bytes(60_000))]))
        assert numbers(poll_messages(patient, 1)) == [1]
        assert time.monotonic() - started < 8

    def test_reading_while_another_writes(
        self, topic: str, bootstrap: str, reader: Callable[..., Consumer]
    ) -> None:
        count = 2000
        writing = threading.Thread(
            target=send, args=(producer(bootstrap), topic, [Message(value=b"%d" % n) for n in range(count)])
        )
        client = reader()
        client.assign([TopicPartition(topic, 0, 0)])
        writing.start()
        try:
            assert numbers(poll_messages(client, count)) == list(range(count))
        finally:
            writing.join(DEADLINE_SECONDS)

    def test_many_partitions_through_one_session(
        self, make_topic: TopicMaker, bootstrap: str, produce: Produce
    ) -> None:
        """Incremental fetch sessions: partitions come, go and come back without losing their place."""
        topic = make_topic(8)
        for partition in range(8):
            produce(topic, 2, partition=partition)
        client = KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest", fetch_max_wait_ms=50
        )
        half = [PurePythonTopicPartition(topic, index) for index in range(4)]
        other = [PurePythonTopicPartition(topic, index) for index in range(4, 8)]
        try:
            client.assign(half)
            assert len(poll_pure_python(client, 8)) == 8
            client.assign(half[:2] + other)
            for partition in half[:2]:
                client.seek(partition, 2)
            first = poll_pure_python(client, 8)
            assert sorted({message.partition for _, message in first}) == [4, 5, 6, 7]
            produce(topic, 1, first=2, partition=0)
            produce(topic, 1, first=2, partition=7)
            later = poll_pure_python(client, 2)
            assert sorted((message.partition, message.offset) for _, message in later) == [(0, 2), (7, 2)]
        finally:
            client.close()
