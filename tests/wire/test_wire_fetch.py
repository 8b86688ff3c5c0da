"""Fetch on the wire: sessions (KIP-227), byte limits, offsets inside a batch, long polls."""

import threading
import time
from typing import Any

import pytest

from tests.chaos.kafka_wire import WireClient, batch_of
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import iterate_headers
from tidelog.server.process import BrokerThread

VERSION = 12
BIG = 64 << 20


def wanted(topic: str, *partitions: tuple[int, int], max_bytes: int = BIG) -> list[dict[str, Any]]:
    """The topics of a request: pairs of partition and offset."""
    return [
        {
            "topic": topic,
            "partitions": [
                {"partition": index, "fetch_offset": offset, "partition_max_bytes": max_bytes}
                for index, offset in partitions
            ],
        }
    ]


def fetch(client: WireClient, topics: list[dict[str, Any]], **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": BIG,
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
    }
    return client.ask("fetch", VERSION, topics=topics, **{**defaults, **fields})


def partitions_of(response: Any) -> dict[int, Any]:
    return {row.partition_index: row for topic in response.responses for row in topic.partitions}


def base_offsets(records: bytes | None) -> list[int]:
    return [header.base_offset for _, header in iterate_headers(memoryview(records or b""))]


@pytest.fixture
def filled(client: WireClient, topic: str) -> str:
    """A topic with ten batches of three records in each of its two partitions."""
    for partition in range(2):
        for number in range(10):
            values = [b"%d-%d" % (number, index) + bytes(100) for index in range(3)]
            assert client.produce(topic, partition, batch_of(*values)).error == 0
    return topic


class TestSessions:
    def test_open_then_only_news(self, client: WireClient, filled: str) -> None:
        opened = fetch(client, wanted(filled, (0, 30), (1, 30)), session_epoch=0)
        assert opened.session_id != 0
        assert sorted(partitions_of(opened)) == [0, 1], "the opening answer names every partition"
        quiet = fetch(client, [], session_id=opened.session_id, session_epoch=1)
        assert quiet.session_id == opened.session_id and partitions_of(quiet) == {}
        client.produce(filled, 1, batch_of(b"news"))
        news = fetch(client, [], session_id=opened.session_id, session_epoch=2)
        assert list(partitions_of(news)) == [1]
        assert base_offsets(partitions_of(news)[1].records) == [30]

    def test_change_and_forget(self, client: WireClient, filled: str) -> None:
        session = fetch(client, wanted(filled, (0, 30), (1, 30)), session_epoch=0).session_id
        moved = fetch(client, wanted(filled, (0, 27)), session_id=session, session_epoch=1)
        assert base_offsets(partitions_of(moved)[0].records) == [27]
        forgotten = [{"topic": filled, "partitions": [0]}]
        left = fetch(client, [], session_id=session, session_epoch=2, forgotten_topics_data=forgotten)
        assert partitions_of(left) == {}
        client.produce(filled, 0, batch_of(b"unheard"))
        assert partitions_of(fetch(client, [], session_id=session, session_epoch=3)) == {}

    def test_a_wrong_epoch_and_an_unknown_session(self, client: WireClient, filled: str) -> None:
        session = fetch(client, wanted(filled, (0, 0)), session_epoch=0).session_id
        wrong = fetch(client, [], session_id=session, session_epoch=7)
        assert int(wrong.error_code) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        right = fetch(client, [], session_id=session, session_epoch=1)
        assert int(right.error_code) == 0, "a wrong epoch does not use one up"
        unknown = fetch(client, [], session_id=123_456, session_epoch=1)
        assert int(unknown.error_code) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def test_closing(self, client: WireClient, filled: str) -> None:
        session = fetch(client, wanted(filled, (0, 0)), session_epoch=0).session_id
        closed = fetch(client, wanted(filled, (0, 0)), session_id=session, session_epoch=-1)
        assert closed.session_id == 0 and base_offsets(partitions_of(closed)[0].records)
        gone = fetch(client, [], session_id=session, session_epoch=1)
        assert int(gone.error_code) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def test_without_room_the_client_gets_no_session(self, broker: BrokerThread, filled: str) -> None:
        """Four slots (see conftest), none of them old enough to be taken away."""
        with WireClient(broker.bootstrap) as client:
            sessions = [fetch(client, wanted(filled, (0, 0)), session_epoch=0).session_id for _ in range(8)]
            assert sessions[-1] == 0
            full = fetch(client, wanted(filled, (0, 0)), session_epoch=0)
            assert full.session_id == 0 and base_offsets(partitions_of(full)[0].records), (
                "data comes all the same"
            )
            for session in filter(None, sessions):
                fetch(client, [], session_id=session, session_epoch=-1)

    def test_an_unknown_partition_is_told_in_every_answer(self, client: WireClient, filled: str) -> None:
        opened = fetch(client, wanted(filled, (0, 30), (77, 0)), session_epoch=0)
        again = fetch(client, [], session_id=opened.session_id, session_epoch=1)
        for response in (opened, again):
            assert int(partitions_of(response)[77].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        fetch(client, [], session_id=opened.session_id, session_epoch=-1)


class TestLimits:
    def test_the_partition_limit_cuts_between_batches(self, client: WireClient, filled: str) -> None:
        one = len(batch_of(*[b"0-0" + bytes(100)] * 3))
        response = fetch(client, wanted(filled, (0, 0), max_bytes=3 * one + 10))
        assert base_offsets(partitions_of(response)[0].records) == [0, 3, 6]

    def test_a_batch_above_the_limit_comes_whole_but_only_one(self, client: WireClient, filled: str) -> None:
        response = fetch(client, wanted(filled, (0, 0), (1, 0), max_bytes=1))
        found = partitions_of(response)
        assert base_offsets(found[0].records) == [0] and base_offsets(found[1].records) == []

    def test_the_total_limit_is_shared(self, client: WireClient, filled: str) -> None:
        one = len(batch_of(*[b"0-0" + bytes(100)] * 3))
        response = fetch(client, wanted(filled, (0, 0), (1, 0)), max_bytes=12 * one)
        found = partitions_of(response)
        assert len(base_offsets(found[0].records)) == 10 and len(base_offsets(found[1].records)) == 2

    def test_a_small_total_serves_all_partitions_in_turn(self, client: WireClient, filled: str) -> None:
        opened = fetch(client, wanted(filled, (0, 0), (1, 0)), session_epoch=0, max_bytes=1)
        served = [index for index, row in partitions_of(opened).items() if row.records]
        for epoch in (1, 2):
            again = fetch(client, [], session_id=opened.session_id, session_epoch=epoch, max_bytes=1)
            served += [index for index, row in partitions_of(again).items() if row.records]
        assert sorted(set(served)) == [0, 1]
        fetch(client, [], session_id=opened.session_id, session_epoch=-1)

    @pytest.mark.parametrize("offset", range(6))
    def test_an_offset_inside_a_batch_brings_the_whole_batch(
        self, client: WireClient, filled: str, offset: int
    ) -> None:
        assert base_offsets(client.fetch(filled, 0, offset).records)[0] == offset // 3 * 3

    @pytest.mark.parametrize("offset", [-1, 31, 10**12])
    def test_an_offset_outside_of_the_log(self, client: WireClient, filled: str, offset: int) -> None:
        fetched = client.fetch(filled, 0, offset)
        assert (fetched.error, fetched.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")

    def test_a_leader_epoch_from_the_future_or_the_past(self, client: WireClient, filled: str) -> None:
        topics = wanted(filled, (0, 0))
        topics[0]["partitions"][0]["current_leader_epoch"] = 9
        row = partitions_of(fetch(client, topics))[0]
        assert int(row.error_code) == ErrorCode.UNKNOWN_LEADER_EPOCH


class TestLongPoll:
    def test_it_ends_in_time_without_data(self, client: WireClient, topic: str) -> None:
        begun = time.monotonic()
        fetched = client.fetch(topic, 0, 0, max_wait_ms=200)
        assert fetched.records == b"" and 0.15 < time.monotonic() - begun < 2

    def test_it_ends_when_enough_arrived(self, broker: BrokerThread, client: WireClient, topic: str) -> None:
        batch = batch_of(bytes(300))

        def produce_three() -> None:
            with WireClient(broker.bootstrap) as producer:
                for _ in range(3):
                    time.sleep(0.05)
                    producer.produce(topic, 0, batch)

        thread = threading.Thread(target=produce_three)
        begun = time.monotonic()
        thread.start()
        fetched = client.fetch(topic, 0, 0, max_wait_ms=10_000, min_bytes=2 * len(batch))
        waited = time.monotonic() - begun
        thread.join()
        assert len(base_offsets(fetched.records)) >= 2 and waited < 5

    def test_it_does_not_wait_when_a_partition_has_an_error(self, client: WireClient, topic: str) -> None:
        begun = time.monotonic()
        response = fetch(client, wanted(topic, (0, 0), (1, 55)), max_wait=10_000)
        assert time.monotonic() - begun < 5
        assert int(partitions_of(response)[1].error_code) == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_deleting_the_topic_ends_it(self, broker: BrokerThread, client: WireClient, topic: str) -> None:
        def delete_soon() -> None:
            time.sleep(0.1)
            with WireClient(broker.bootstrap) as other:
                other.ask("delete_topics", 4, topic_names=[topic], timeout=10_000)

        thread = threading.Thread(target=delete_soon)
        thread.start()
        begun = time.monotonic()
        fetched = client.fetch(topic, 0, 0, max_wait_ms=20_000)
        thread.join()
        assert time.monotonic() - begun < 10
        assert fetched.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
