"""Writing: partitions, batches, idempotence, refusals, append times, the topic's own compression."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidRecordError, MessageSizeTooLargeError
from kafka.errors import KafkaError as PurePythonKafkaError

from tests.conformance.conformance_wire import stored_batches
from tests.conformance.drivers.confluent import consumer, producer, read_all, send
from tests.conformance.drivers.contract import (
    ALL_CODECS,
    ANY_PARTITION,
    DEADLINE_SECONDS,
    Driver,
    Message,
    TopicMaker,
    new_name,
)
from tests.conformance.drivers.kafkajs import KafkaJsDriver, KafkaJsProcess
from tests.conformance.drivers.kcat import run_kcat


def errors_of(reports: Sequence[KafkaError | None]) -> set[int | None]:
    return {None if error is None else error.code() for error in reports}


def numbered(count: int, partition: int = 0) -> list[Message]:
    return [
        Message(value=b"%d" % number, key=b"key-%d" % (number % 7), partition=partition)
        for number in range(count)
    ]


class TestDelivery:
    def test_explicit_partitions_and_offsets(self, make_topic: TopicMaker, bootstrap: str) -> None:
        """The answer tells where each record landed, counting in each partition from zero."""
        topic = make_topic(3)
        client = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=False)
        try:
            futures = [client.send(topic, b"%d" % number, partition=number % 3) for number in range(30)]
            landed = [future.get(timeout=DEADLINE_SECONDS) for future in futures]
        finally:
            client.close(timeout=5)
        assert [(data.partition, data.offset) for data in landed] == [
            (number % 3, number // 3) for number in range(30)
        ]

    def test_unknown_partition_is_refused(self, topic: str, bootstrap: str) -> None:
        reports = send(producer(bootstrap), topic, [Message(value=b"x", partition=9)])
        assert errors_of(reports) == {KafkaError._UNKNOWN_PARTITION}

    def test_linger_makes_batches(self, topic: str, bootstrap: str) -> None:
        count, linger_ms = 500, 300
        client = producer(bootstrap, linger_ms=linger_ms, batch_num_messages=10_000)
        # Records that waited for metadata have lingered long enough, and would go one by one.
        assert not any(send(client, topic, numbered(1)))
        assert not any(send(client, topic, numbered(count)))
        batches = stored_batches(bootstrap, topic)[1:]
        assert sum(batch.record_count for batch in batches) == count
        # As many lingers as the producer's own clock saw, however slow the machine was.
        lingers = 1 + (batches[-1].max_timestamp_ms - batches[0].first_timestamp_ms) // linger_ms
        assert len(batches) <= 3 + 2 * lingers, "hundreds of records travel in a few batches"

    @pytest.mark.parametrize("in_flight", [1, 5])
    @pytest.mark.parametrize("acks", ["1", "all"])
    def test_several_in_flight_keep_their_order(
        self, acks: str, in_flight: int, make_topic: TopicMaker, bootstrap: str
    ) -> None:
        topic = make_topic(2)
        count = 1000
        client = producer(bootstrap, acks=acks, max_in_flight=in_flight, batch_num_messages=7)
        messages = [
            message for pair in zip(numbered(count), numbered(count, 1), strict=True) for message in pair
        ]
        assert not any(send(client, topic, messages))
        received = read_all(bootstrap, topic, 2 * count, 2)
        for partition in range(2):
            values = [message.value for message in received if message.partition == partition]
            assert values == [b"%d" % number for number in range(count)]

    def test_two_topics_in_one_request(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topics = [make_topic(2), make_topic(2)]
        client = producer(bootstrap, linger_ms=100)
        reports: list[KafkaError | None] = []
        for number, topic in itertools.product(range(20), topics):
            client.produce(
                topic,
                b"%d" % number,
                partition=number % 2,
                on_delivery=lambda error, _: reports.append(error),
            )
        assert client.flush(DEADLINE_SECONDS) == 0
        assert reports == [None] * 40
        for topic in topics:
            assert [m.value for m in read_all(bootstrap, topic, 20, 2)] == [
                b"%d" % number for number in [*range(0, 20, 2), *range(1, 20, 2)]
            ]


class TestIdempotence:
    def test_confluent(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(2)
        client = producer(bootstrap, enable_idempotence=True, batch_num_messages=10)
        messages = numbered(500) + numbered(500, 1)
        assert not any(send(client, topic, messages))
        assert [m.value for m in read_all(bootstrap, topic, 1000, 2)] == [m.value for m in messages]
        batches = stored_batches(bootstrap, topic)
        assert {(batch.producer_id >= 0, batch.producer_epoch) for batch in batches} == {(True, 0)}
        expected = 0
        for batch in batches:
            assert batch.base_sequence == expected
            expected += batch.record_count

    def test_kafka_python(self, topic: str, bootstrap: str) -> None:
        client = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", linger_ms=0)
        try:
            futures = [client.send(topic, b"%d" % number) for number in range(300)]
            assert [future.get(timeout=DEADLINE_SECONDS).offset for future in futures] == list(range(300))
        finally:
            client.close(timeout=5)
        assert [m.value for m in read_all(bootstrap, topic, 300)] == [b"%d" % number for number in range(300)]

    def test_aiokafka(self, topic: str, bootstrap: str) -> None:
        async def write() -> list[int]:
            client = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
            await client.start()
            try:
                futures = [await client.send(topic, b"%d" % number, partition=0) for number in range(300)]
                return [(await future).offset for future in futures]
            finally:
                await client.stop()

        assert asyncio.run(asyncio.wait_for(write(), DEADLINE_SECONDS)) == list(range(300))
        assert [m.value for m in read_all(bootstrap, topic, 300)] == [b"%d" % number for number in range(300)]

    def test_producers_have_different_ids(self, topic: str, bootstrap: str) -> None:
        for _ in range(3):
            assert not any(send(producer(bootstrap, enable_idempotence=True), topic, numbered(1)))
        assert len({batch.producer_id for batch in stored_batches(bootstrap, topic)}) == 3


class TestRefusals:
    def test_too_large_for_the_topic(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(max_message_bytes="2000")
        messages = [Message(value=bytes(1000)), Message(value=bytes(5000)), Message(value=b"after")]
        client = producer(bootstrap, batch_num_messages=1)
        reports = [send(client, topic, [message])[0] for message in messages]
        assert [error and error.code() for error in reports] == [None, KafkaError.MSG_SIZE_TOO_LARGE, None]
        assert [m.value for m in read_all(bootstrap, topic, 2)] == [bytes(1000), b"after"]

    def test_too_large_for_the_topic_in_kafka_python(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(max_message_bytes="2000")
        client = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=False)
        try:
            with pytest.raises(MessageSizeTooLargeError):
                client.send(topic, bytes(5000)).get(timeout=DEADLINE_SECONDS)
            assert client.send(topic, b"after").get(timeout=DEADLINE_SECONDS).offset == 0
        finally:
            client.close(timeout=5)

    def test_the_limit_is_on_the_compressed_batch(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(max_message_bytes="2000")
        client = producer(bootstrap, compression_type="gzip")
        assert not any(send(client, topic, [Message(value=bytes(50_000))]))

    def test_larger_than_the_default_limit(self, topic: str, bootstrap: str) -> None:
        client = producer(bootstrap, message_max_bytes=10_000_000)
        reports = send(client, topic, [Message(value=bytes(1_100_000))])
        assert errors_of(reports) == {KafkaError.MSG_SIZE_TOO_LARGE}

    def test_large_messages_where_the_topic_allows(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(max_message_bytes="5000000")
        value = bytes(range(256)) * 16_000
        client = producer(bootstrap, message_max_bytes=10_000_000)
        assert not any(send(client, topic, [Message(value=value)]))
        assert read_all(bootstrap, topic, 1)[0].value == value

    def test_keyless_on_a_compacted_topic(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(cleanup_policy="compact")
        client = producer(bootstrap)
        assert errors_of(send(client, topic, [Message(value=b"no key")])) == {KafkaError.INVALID_RECORD}
        assert errors_of(send(client, topic, [Message(value=b"with key", key=b"k")])) == {None}
        assert [m.key for m in read_all(bootstrap, topic, 1)] == [b"k"]

    def test_one_keyless_record_refuses_its_whole_batch(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(cleanup_policy="compact")
        client = KafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=False, linger_ms=300, retries=0
        )
        try:
            futures = [
                client.send(topic, b"v", key=b"k" if number != 2 else None, partition=0)
                for number in range(4)
            ]
            client.flush(timeout=DEADLINE_SECONDS)
            failures = [future.exception for future in futures]
            # The answer names the faulty record; the client tells the others that they shared its batch.
            assert [isinstance(failure, InvalidRecordError) for failure in failures] == [
                False,
                False,
                True,
                False,
            ]
            assert all(isinstance(failure, PurePythonKafkaError) for failure in failures)
            assert client.send(topic, b"v", key=b"k").get(timeout=DEADLINE_SECONDS).offset == 0
        finally:
            client.close(timeout=5)

    def test_timestamp_too_far_ahead(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(message_timestamp_after_max_ms="60000")
        ahead_ms = int(time.time() * 1000) + 3_600_000
        reports = send(producer(bootstrap), topic, [Message(value=b"x", timestamp_ms=ahead_ms)])
        assert errors_of(reports) == {KafkaError.INVALID_TIMESTAMP}


class TestAutoCreation:
    @pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka", "kcat"])
    def test_producing_makes_the_topic(
        self, client: str, bootstrap: str, admin: AdminClient, find_driver: Callable[[str], Driver]
    ) -> None:
        topic = new_name(f"auto-{client}")
        find_driver(client).produce(bootstrap, topic, [Message(value=b"first", partition=ANY_PARTITION)])
        assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 4
        assert [m.value for m in read_all(bootstrap, topic, 1, 4)] == [b"first"]

    def test_a_client_can_decline(self, bootstrap: str, admin: AdminClient) -> None:
        topic = new_name("declined")
        client = producer(bootstrap, allow_auto_create_topics=False, topic_metadata_propagation_max_ms=0)
        assert errors_of(send(client, topic, [Message(value=b"x", partition=ANY_PARTITION)])) == {
            KafkaError.UNKNOWN_TOPIC_OR_PART
        }
        assert topic not in admin.list_topics(timeout=10).topics

    def test_kafkajs_without_creation(self, bootstrap: str, kafkajs: KafkaJsProcess) -> None:
        driver = KafkaJsDriver(kafkajs, retries=1)
        with pytest.raises(AssertionError, match="does not host this topic-partition"):
            driver.produce(bootstrap, new_name("declined"), [Message(value=b"x", partition=ANY_PARTITION)])

    def test_illegal_name(self, bootstrap: str) -> None:
        reports = send(
            producer(bootstrap), "no spaces allowed", [Message(value=b"x", partition=ANY_PARTITION)]
        )
        assert errors_of(reports) == {KafkaError.TOPIC_EXCEPTION}


class TestAppendTime:
    def test_consumers_see_the_time_of_the_broker(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(message_timestamp_type="LogAppendTime")
        before_ms = int(time.time() * 1000)
        messages = [Message(value=b"%d" % number, timestamp_ms=1_000_000 + number) for number in range(3)]
        assert not any(send(producer(bootstrap, compression_type="lz4"), topic, messages))
        client = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
        try:
            client.assign([TopicPartition(topic, 0)])
            records: list[object] = []
            while len(records) < 3:
                for each in client.poll(timeout_ms=1000).values():
                    records.extend(each)
        finally:
            client.close()
        for record in records:
            assert record.timestamp_type == 1  # type: ignore[attr-defined]
            assert before_ms - 1000 <= record.timestamp <= time.time() * 1000 + 1000  # type: ignore[attr-defined]

    def test_the_answer_carries_the_time(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(message_timestamp_type="LogAppendTime")
        client = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=False)
        try:
            answered = client.send(topic, b"x", timestamp_ms=1_000_000).get(timeout=DEADLINE_SECONDS)
        finally:
            client.close(timeout=5)
        assert answered.timestamp == read_all(bootstrap, topic, 1)[0].timestamp_ms
        assert abs(answered.timestamp - time.time() * 1000) < 60_000

    def test_the_time_is_found_by_timestamp(self, make_topic: TopicMaker, bootstrap: str) -> None:
        topic = make_topic(message_timestamp_type="LogAppendTime")
        before_ms = int(time.time() * 1000) - 1000
        assert not any(send(producer(bootstrap), topic, [Message(value=b"x", timestamp_ms=1_000_000)]))
        from confluent_kafka import OFFSET_END
        from confluent_kafka import TopicPartition as ConfluentPartition

        client = consumer(bootstrap)
        try:
            for at_ms, offset in ((before_ms, 0), (before_ms + 3_600_000, OFFSET_END)):
                found = client.offsets_for_times([ConfluentPartition(topic, 0, at_ms)], timeout=5)
                assert found[0].offset == offset
        finally:
            client.close()


class TestTopicCompression:
    @pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
    def test_the_topic_decides(self, wanted: str, make_topic: TopicMaker, bootstrap: str) -> None:
        """Whatever codec the producer used, batches are stored with the topic's; content and headers stay."""
        topic = make_topic(compression_type=wanted)
        sent = []
        for index, codec in enumerate(ALL_CODECS):
            message = Message(
                value=b"%d " % index * 500,
                key=b"k",
                headers=(("h", b"\x00\xff"),),
                timestamp_ms=1_000 + index,
            )
            assert not any(send(producer(bootstrap, compression_type=codec), topic, [message]))
            sent.append(message)
        expected = "none" if wanted == "uncompressed" else wanted
        assert [batch.codec for batch in stored_batches(bootstrap, topic)] == [expected] * len(ALL_CODECS)
        received = read_all(bootstrap, topic, len(sent))
        assert [(m.content, m.timestamp_ms) for m in received] == [(m.content, m.timestamp_ms) for m in sent]

    @pytest.mark.parametrize("codec", ALL_CODECS)
    def test_the_producer_decides_by_default(self, codec: str, topic: str, bootstrap: str) -> None:
        assert not any(
            send(producer(bootstrap, compression_type=codec), topic, [Message(value=b"word " * 500)])
        )
        assert [batch.codec for batch in stored_batches(bootstrap, topic)] == [codec]

    def test_a_change_holds_for_later_batches(self, topic: str, bootstrap: str, admin: AdminClient) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry  # type: ignore[attr-defined]

        client = producer(bootstrap)
        assert not any(send(client, topic, [Message(value=b"word " * 500)]))
        entry = ConfigEntry("compression.type", "zstd", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(10)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (
            stored_batches(bootstrap, topic)[-1].codec != "zstd"
        ):  # Kafka applies a change a moment after its answer
            assert time.monotonic() < deadline
            assert not any(send(client, topic, [Message(value=b"word " * 500)]))
        assert stored_batches(bootstrap, topic)[0].codec == "none"


def test_kcat_reports_a_refusal(make_topic: TopicMaker, bootstrap: str) -> None:
    topic = make_topic(cleanup_policy="compact")
    with pytest.raises(AssertionError, match=r"(?i)broker failed to validate record"):
        run_kcat("-P", "-b", bootstrap, "-t", topic, "-p", "0", stdin=b"no key\n")
