"""One disk fault costs what it touches, and nothing else."""

import struct
from typing import Any

import pytest

from tests.unit.broker.node import NodeUnderTest, batch, fetch_frame, joined, produce_frame
from tidelog.broker.requests.request import CloseConnection
from tidelog.controller.commands import CreateTopics, TopicCreated, TopicSpec
from tidelog.model.errors import ErrorCode
from tidelog.storage.flush_plan import SyncFailed
from tidelog.storage.partition_log import PartitionLog


def test_a_log_that_cannot_be_opened_does_not_stop_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeUnderTest()
    original = node.broker.log_directories.open_log
    broken = True

    def open_log(topic_partition: Any, *arguments: Any, **options: Any) -> PartitionLog:
        if broken and topic_partition.topic == "bad":
            raise OSError(28, "No space left on device")
        return original(topic_partition, *arguments, **options)

    monkeypatch.setattr(type(node.broker.log_directories), "open_log", staticmethod(open_log))
    results: list[Any] = []
    for name in ("bad", "good"):
        node.broker.metadata.submit(CreateTopics((TopicSpec(name, 1, 1),)), results.extend)
    assert [type(result) for result in results] == [TopicCreated, TopicCreated]
    assert (
        node.broker.replicas.leader("good", 0) is not None and node.broker.replicas.leader("bad", 0) is None
    )
    broken = False
    node.advance(2_000)
    assert node.broker.replicas.leader("bad", 0) is not None, "log maintenance tries again"


def test_a_read_fault_is_answered_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    pending = node.handle(fetch_frame("t", 0, max_wait_ms=500))

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(PartitionLog, "read", fail)
    produced = joined(node.handle(produce_frame(3, batch(b"x"))))
    assert struct.unpack_from(">h", produced, 8 + 4 + 3 + 4 + 4) == (0,), "the producer is not concerned"
    assert struct.pack(">ih", 0, ErrorCode.KAFKA_STORAGE_ERROR) in joined(pending)
    assert node.broker.purgatory.count == 0


def test_a_failed_sync_is_not_forgotten() -> None:
    class Failing:
        def run(self, work: Any, then: Any) -> None:
            then(SyncFailed(5, "Input/output error"))

    node = NodeUnderTest()
    node.create_topic("t", flush_messages="1")
    good_background = node.broker.flusher._background
    node.broker.flusher._background = Failing()  # type: ignore[assignment]
    node.handle(produce_frame(3, batch(b"x")))
    node.broker.flusher._background = good_background
    again = joined(node.handle(produce_frame(3, batch(b"y"))))
    assert struct.unpack_from(">h", again, 8 + 4 + 3 + 4 + 4) == (ErrorCode.KAFKA_STORAGE_ERROR,)
    assert node.broker.replicas.led["t", 0].log.recovery_point == 0


def test_acks_0_is_flushed_too() -> None:
    node = NodeUnderTest()
    node.create_topic("t", flush_messages="1")
    assert node.handle(produce_frame(3, batch(b"x"), acks=0)) is None
    assert node.broker.replicas.led["t", 0].log.recovery_point == 1


def test_a_deleted_topic_does_not_make_a_consumer_poll_in_a_circle() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    two_topics = (
        struct.pack(">hhih", 1, 4, 78, 4)
        + b"test"
        + struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0)
        + struct.pack(">i", 2)
        + b"".join(
            struct.pack(">h", len(name)) + name + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
            for name in (b"t", b"gone")
        )
    )
    pending = node.handle(two_topics)
    assert pending.chunks is None, "the topic that exists is waited for"
    node.advance(500)
    assert struct.pack(">ih", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) in joined(pending)


def test_transactional_records_without_an_id_and_acks_0_have_no_answer() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    records = batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(CloseConnection):
        node.handle(produce_frame(3, records, acks=0))
