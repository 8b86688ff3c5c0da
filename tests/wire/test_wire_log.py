"""Produce and what asks about a log: append times, sequences, DeleteRecords, ListOffsets, epochs."""

import time
from typing import Any

import pytest

from tests.chaos.hostile_frames import sealed_batch
from tests.chaos.kafka_wire import WireClient, batch_of
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import read_header
from tidelog.records.compression import Codec

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
T0 = 1_700_000_000_000


class TestAppendTime:
    def test_it_is_echoed_and_stored(self, client: WireClient) -> None:
        client.create_topic("append-time", message_timestamp_type="LogAppendTime")
        before = time.time_ns() // 1_000_000
        produced = client.produce("append-time", 0, batch_of(b"a", b"b"))
        after = time.time_ns() // 1_000_000
        assert produced.error == 0 and before <= produced.log_append_time_ms <= after
        header = read_header(memoryview(client.fetch("append-time", 0, 0).records))
        assert header.log_append_time and header.max_timestamp_ms == produced.log_append_time_ms

    def test_create_time_answers_minus_one(self, client: WireClient, topic: str) -> None:
        assert client.produce(topic, 0, batch_of(b"a")).log_append_time_ms == -1


class TestSequences:
    def batch(self, producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
        return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    def test_a_retry_is_answered_with_the_old_offset(self, client: WireClient, topic: str) -> None:
        producer_id, _ = client.init_producer_id()
        batches = [self.batch(producer_id, 2 * number, b"%d" % number, b"x") for number in range(6)]
        assert [client.produce(topic, 0, batch).base_offset for batch in batches] == [0, 2, 4, 6, 8, 10]
        # The last five batches are remembered.
        assert [client.produce(topic, 0, batch).base_offset for batch in batches[1:]] == [2, 4, 6, 8, 10]
        assert client.fetch(topic, 0, 0).high_watermark == 12
        # Older ones are not told from a gap, as in Kafka.
        assert client.produce(topic, 0, batches[0]).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_gap_is_refused_and_changes_nothing(self, client: WireClient, topic: str) -> None:
        producer_id, _ = client.init_producer_id()
        assert client.produce(topic, 0, self.batch(producer_id, 0, b"a")).error == 0
        gap = client.produce(topic, 0, self.batch(producer_id, 5, b"b"))
        assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert client.produce(topic, 0, self.batch(producer_id, 1, b"c")).base_offset == 1

    def test_a_new_epoch_begins_at_zero_and_fences_the_old(self, client: WireClient, topic: str) -> None:
        producer_id, _ = client.init_producer_id()
        client.produce(topic, 0, self.batch(producer_id, 0, b"a"))
        assert client.produce(topic, 0, self.batch(producer_id, 0, b"b", epoch=1)).base_offset == 1
        old = client.produce(topic, 0, self.batch(producer_id, 1, b"c", epoch=0))
        assert old.error == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_each_partition_counts_for_itself(self, client: WireClient, topic: str) -> None:
        producer_id, _ = client.init_producer_id()
        for partition in (0, 1):
            assert client.produce(topic, partition, self.batch(producer_id, 0, b"a")).base_offset == 0


class TestDeleteRecords:
    def delete(self, client: WireClient, topic: str, offset: int) -> Any:
        answer = client.ask(
            "delete_records",
            2,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}],
            timeout=10_000,
        )
        return answer.topics[0].partitions[0]

    def test_the_start_moves_and_old_offsets_are_out_of_range(self, client: WireClient, topic: str) -> None:
        for number in range(10):
            client.produce(topic, 0, batch_of(b"%d" % number))
        deleted = self.delete(client, topic, 4)
        assert (int(deleted.error_code), deleted.low_watermark) == (0, 4)
        assert client.list_offset(topic, 0, EARLIEST).offset == 4
        assert client.fetch(topic, 0, 3).error == ErrorCode.OFFSET_OUT_OF_RANGE
        fetched = client.fetch(topic, 0, 4)
        assert fetched.log_start_offset == 4 and read_header(memoryview(fetched.records)).base_offset == 4

    def test_minus_one_deletes_up_to_the_end(self, client: WireClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(b"a", b"b"))
        assert self.delete(client, topic, -1).low_watermark == 2
        assert client.produce(topic, 0, batch_of(b"c")).base_offset == 2

    def test_beyond_the_end_is_refused(self, client: WireClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(b"a"))
        assert int(self.delete(client, topic, 2).error_code) == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_backwards_changes_nothing(self, client: WireClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(b"a", b"b"))
        self.delete(client, topic, 2)
        assert self.delete(client, topic, 1).low_watermark == 2


class TestListOffsets:
    @pytest.fixture
    def times(self, client: WireClient, topic: str) -> str:
        """Timestamps T0+10 (offset 0), T0+30 (1), T0+20 (2)."""
        for delta in (10, 30, 20):
            client.produce(topic, 0, batch_of(b"v", timestamp_ms=T0 + delta))
        return topic

    @pytest.mark.parametrize(
        ("timestamp", "offset", "found"),
        [
            (LATEST, 3, -1),
            (EARLIEST, 0, -1),
            (EARLIEST_LOCAL, 0, -1),
            (MAX_TIMESTAMP, 1, T0 + 30),
            (0, 0, T0 + 10),
            (T0 + 10, 0, T0 + 10),
            (T0 + 11, 1, T0 + 30),
            (T0 + 30, 1, T0 + 30),
            (T0 + 31, -1, -1),
        ],
    )
    def test_by_time(self, client: WireClient, times: str, timestamp: int, offset: int, found: int) -> None:
        answer = client.ask(
            "list_offsets",
            8,
            replica_id=-1,
            topics=[{"name": times, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
        )
        row = answer.topics[0].partitions[0]
        assert (int(row.error_code), row.offset, row.timestamp) == (0, offset, found)

    def test_an_empty_partition(self, client: WireClient, topic: str) -> None:
        assert client.list_offset(topic, 1, LATEST).offset == 0
        assert client.list_offset(topic, 1, EARLIEST).offset == 0
        assert client.list_offset(topic, 1, MAX_TIMESTAMP).offset == -1
        assert client.list_offset(topic, 1, T0).offset == -1

    def test_an_unknown_partition(self, client: WireClient, topic: str) -> None:
        row = client.list_offset(topic, 9, LATEST)
        assert int(row.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_batch_that_cannot_be_unpacked_does_not_cost_the_connection(
        self, client: WireClient, topic: str
    ) -> None:
        """Its checksum is right, so it was stored without being walked; a lookup by time must look inside."""
        client.produce(topic, 0, sealed_batch(Codec.GZIP, b"this is not gzip"))
        row = client.list_offset(topic, 0, T0 - 10)
        assert int(row.error_code) != 0 or row.offset in (-1, 0)
        assert client.list_offset(topic, 0, LATEST).offset == 1


class TestOffsetForLeaderEpoch:
    def ask(self, client: WireClient, topic: str, epoch: int, current: int = -1) -> Any:
        answer = client.ask(
            "offset_for_leader_epoch",
            4,
            replica_id=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}],
                }
            ],
        )
        return answer.topics[0].partitions[0]

    def test_the_present_epoch_ends_at_the_end(self, client: WireClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(b"a", b"b"))
        row = self.ask(client, topic, 0)
        assert (int(row.error_code), row.leader_epoch, row.end_offset) == (0, 0, 2)

    def test_a_future_epoch_is_undefined(self, client: WireClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(b"a"))
        row = self.ask(client, topic, 5)
        assert (int(row.error_code), row.leader_epoch, row.end_offset) == (0, -1, -1)

    def test_a_wrong_current_epoch_is_refused(self, client: WireClient, topic: str) -> None:
        assert int(self.ask(client, topic, 0, current=3).error_code) == ErrorCode.UNKNOWN_LEADER_EPOCH
