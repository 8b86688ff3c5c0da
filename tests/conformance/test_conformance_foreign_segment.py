"""A segment that another implementation wrote is served like our own."""

import struct
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka.record import MemoryRecordsBuilder

from tidelog.testing.broker import RunningBroker

TOPIC = "foreign"
RECORDS = 500
TIME_MS = 1_700_000_000_000
#: kafka-python's codec numbers: none, gzip, snappy, lz4, zstd
CODECS = (0, 1, 2, 3, 4)


def foreign_segment() -> tuple[bytes, list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]]:
    """Batches of kafka-python, one after the other, each with the next base offset."""
    segment = bytearray()
    expected = []
    offset = 0
    while offset < RECORDS:
        codec = CODECS[(offset // 10) % len(CODECS)]
        builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 20)
        for number in range(offset, offset + 10):
            key = None if number % 7 == 0 else b"key %d" % (number % 20)
            value = None if number % 11 == 0 and key is not None else b"value %d " % number * (number % 30)
            headers = [("number", b"%d" % number)] if number % 3 == 0 else []
            assert builder.append(TIME_MS + number, key, value, headers) is not None
            expected.append((key, value, headers))
        builder.close()
        batch = bytearray(builder.buffer())
        struct.pack_into(">q", batch, 0, offset)  # as the leader that takes it does
        segment += batch
        offset += 10
    return bytes(segment), expected


def test_a_segment_of_another_implementation_is_served(tmp_path: Path) -> None:
    segment, expected = foreign_segment()
    with RunningBroker(data_directory=tmp_path / "data", mode="process") as broker:
        broker.create_topic(TOPIC)
        broker.stop()
        folder = broker.data_directory / f"{TOPIC}-0"
        for path in folder.glob("0*"):
            path.unlink()
        (folder / "00000000000000000000.log").write_bytes(segment)
        (broker.data_directory / ".kafka_cleanshutdown").unlink()
        broker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "foreign"})
        try:
            consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
            for offset, (key, value, headers) in enumerate(expected):
                message = consumer.poll(20)
                assert message is not None and message.error() is None, f"nothing at offset {offset}"
                assert (message.offset(), message.key(), message.value()) == (offset, key, value)
                assert (message.headers() or []) == headers
                assert message.timestamp()[1] == TIME_MS + offset
            [by_time] = consumer.offsets_for_times([TopicPartition(TOPIC, 0, TIME_MS + 321)], timeout=20)
            assert by_time.offset == 321
        finally:
            consumer.close()
