"""Produce and Fetch inside a broker without sockets."""

import struct
from copy import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.node import START_MS, NodeUnderTest, batch, fetch_frame, joined, produce_frame
from tidelog.broker.maintenance.log_maintenance import TICK_MS
from tidelog.broker.requests import produce_templates
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.handlers.produce import Doing, Targets
from tidelog.broker.requests.produce_templates import (
    KNOWN_BYTES_MAX,
    TEMPLATE_BYTES_MAX,
    TEMPLATES_BYTES_MAX,
    ProduceTemplate,
)
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import APIS, PRODUCE
from tidelog.protocol.primitives import DECODING_ERRORS


def produced(answer: Any, version: int = 3) -> tuple[int, int]:
    """Error and base offset of a version 3 answer for topic `t`."""
    assert version == 3
    data = joined(answer)
    return struct.unpack_from(">hq", data, 8 + 4 + 3 + 4 + 4)


def fetched(answer: Any) -> tuple[int, int, bytes]:
    """Error, high watermark and records of a Fetch v4 answer for topic `t`."""
    data = joined(answer)
    error, high_watermark = struct.unpack_from(">hq", data, 8 + 4 + 4 + 3 + 4 + 4)
    position = 8 + 4 + 4 + 3 + 4 + 4 + 2 + 8 + 8 + 4
    (size,) = struct.unpack_from(">i", data, position)
    return error, high_watermark, data[position + 4 : position + 4 + size]


@pytest.mark.parametrize("version", range(3, 14))
def test_the_short_way_answers_like_the_long_way(version: int) -> None:
    """The second request of a template is served without decoding; only numbers may differ."""
    node = NodeUnderTest()
    node.create_topic("t", 3)
    topic = node.broker.image.topics["t"].topic_id if version >= 13 else "t"
    frames = [
        produce_frame(version, batch(b"a", b"b"), topic, partition=1, correlation_id=n) for n in range(4)
    ]
    long_way = [joined(node.handle(frame)) for frame in frames[:1]]
    assert bool(node.context.produce_templates) == (version >= 7)
    short_way = [joined(node.handle(frame)) for frame in frames[1:]]
    node.context.produce_templates.clear()
    node.context.produce_template_end = 0
    expected = joined(node.handle(frames[3]))
    assert short_way[2] == expected.replace(struct.pack(">q", 8), struct.pack(">q", 6))
    assert len({len(answer) for answer in (*long_way, *short_way)}) == 1
    assert node.broker.replicas.led["t", 1].log.log_end_offset == 10


def test_a_remembered_shape_dies_with_its_topic() -> None:
    from tidelog.controller.commands import DeleteTopics, TopicReference

    node = NodeUnderTest()
    node.create_topic("t")
    for _ in range(2):
        node.handle(produce_frame(9, batch(b"a")))
    node.broker.metadata.submit(DeleteTopics((TopicReference("t"),)), lambda results: None)
    answer = joined(node.handle(produce_frame(9, batch(b"a"))))
    assert struct.pack(">ih", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) in answer
    node.create_topic("t")
    assert struct.pack(">ihq", 0, 0, 0) in joined(node.handle(produce_frame(9, batch(b"a"))))


@settings(max_examples=300)
@given(st.binary(max_size=40), st.integers(0, 200), st.sampled_from([7, 8, 9, 12]))
def test_damage_to_a_repeated_request_is_noticed(junk: bytes, place: int, version: int) -> None:
    """A frame that starts with a known template but does not end like one is refused like any other."""
    node = SHARED
    frame = produce_frame(version, batch(b"a"))
    node.handle(frame)
    end = node.broker.replicas.led["t", 0].log.log_end_offset
    place %= len(frame)
    damaged = frame[: max(place, 20)] + junk
    if damaged == frame:
        return
    try:
        node.handle(damaged)
    except (CloseConnection, *DECODING_ERRORS):
        pass
    assert node.broker.replicas.led["t", 0].log.log_end_offset == end


SHARED = NodeUnderTest()
SHARED.create_topic("t")


def test_a_refused_batch_does_not_harm_its_neighbours() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    broken = bytearray(batch(b"abc"))
    broken[-1] ^= 1
    assert produced(node.handle(produce_frame(3, bytes(broken)))) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert produced(node.handle(produce_frame(3, batch(b"abc")))) == (0, 0)


def test_acks_0_has_no_answer_and_errors_close_the_connection() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    assert node.handle(produce_frame(3, batch(b"x"), acks=0)) is None
    assert node.broker.replicas.led["t", 0].log.log_end_offset == 1
    with pytest.raises(CloseConnection):
        node.handle(produce_frame(3, batch(b"x"), topic="unknown", acks=0))


def test_other_acks_are_refused() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    assert produced(node.handle(produce_frame(3, batch(b"x"), acks=2))) == (
        ErrorCode.INVALID_REQUIRED_ACKS,
        -1,
    )


def test_zstd_below_version_7_is_refused() -> None:
    from tidelog.records.compression import Codec

    node = NodeUnderTest()
    node.create_topic("t")
    zstd = batch(b"x", codec=Codec.ZSTD)
    assert produced(node.handle(produce_frame(3, zstd)))[0] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_fetch_waits_for_data_and_wakes() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    pending = node.handle(fetch_frame("t", 0, max_wait_ms=500))
    assert isinstance(pending, PendingAnswer) and pending.chunks is None
    node.handle(produce_frame(3, batch(b"x")))
    assert fetched(pending)[0:2] == (0, 1)
    assert node.broker.purgatory.count == 0 and not node.broker.replicas.led["t", 0].waiters


def test_a_fetch_waits_for_min_bytes() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    size = len(batch(b"x"))
    pending = node.handle(fetch_frame("t", 0, max_wait_ms=500, min_bytes=2 * size))
    node.handle(produce_frame(3, batch(b"x")))
    assert pending.chunks is None
    node.handle(produce_frame(3, batch(b"y")))
    assert len(fetched(pending)[2]) == 2 * size


def test_a_fetch_ends_at_its_deadline() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    pending = node.handle(fetch_frame("t", 0, max_wait_ms=500))
    node.advance(499)
    assert pending.chunks is None
    node.advance(1)
    assert fetched(pending) == (0, 0, b"")


def test_an_abandoned_fetch_leaves_nothing_behind() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    pending = node.handle(fetch_frame("t", 0, max_wait_ms=500))
    pending.delayed.abandon()
    assert node.broker.purgatory.count == 0 and not node.broker.replicas.led["t", 0].waiters
    node.handle(produce_frame(3, batch(b"x")))
    node.advance(1000)
    assert pending.chunks is None


def test_fetched_bytes_are_the_produced_bytes() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    sent = batch(b"one", b"two")
    node.handle(produce_frame(3, sent))
    _, _, records = fetched(node.handle(fetch_frame("t", 1)))
    assert records[16:] == sent[16:], "all behind the leader epoch travels unchanged"
    assert fetched(node.handle(fetch_frame("t", 3)))[0] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_flush_messages_is_acknowledged_after_the_sync() -> None:
    """What was acknowledged under flush.messages=1 survives a power cut."""
    node = NodeUnderTest()
    node.create_topic("t", flush_messages="1")
    assert produced(node.handle(produce_frame(3, batch(b"kept")))) == (0, 0)
    survivor = NodeUnderTest(node.disk.crash(), node.store.reopen())
    assert survivor.broker.replicas.led["t", 0].log.log_end_offset == 1


def test_a_failed_sync_is_a_storage_error() -> None:
    class FailingBackground:
        def run(self, work: Any, then: Any) -> None:
            then(OSError(5, "Input/output error"))

    node = NodeUnderTest()
    node.create_topic("t", flush_messages="1")
    node.broker.flusher._background = FailingBackground()  # type: ignore[assignment]
    assert produced(node.handle(produce_frame(3, batch(b"x"))))[0] == ErrorCode.KAFKA_STORAGE_ERROR


def test_log_append_time_is_echoed() -> None:
    node = NodeUnderTest()
    node.create_topic("t", message_timestamp_type="LogAppendTime")
    node.clock.time_ms = START_MS + 5
    answer = joined(node.handle(produce_frame(3, batch(b"x"))))
    assert struct.unpack_from(">q", answer, 8 + 4 + 3 + 4 + 4 + 10) == (START_MS + 5,)


def test_clients_may_not_write_to_internal_topics() -> None:
    node = NodeUnderTest()
    node.create_topic("__consumer_offsets", cleanup_policy="compact")
    frame = produce_frame(9, batch(b"x"), topic="__consumer_offsets")
    answer = joined(node.handle(frame))
    assert struct.pack(">ih", 0, ErrorCode.INVALID_TOPIC_EXCEPTION) in answer
    assert node.broker.replicas.led["__consumer_offsets", 0].log.log_end_offset == 0


def test_batches_larger_than_a_segment_are_refused() -> None:
    node = NodeUnderTest()
    node.create_topic("t", segment_bytes="100")
    assert produced(node.handle(produce_frame(3, batch(b"x" * 200)))) == (ErrorCode.RECORD_LIST_TOO_LARGE, -1)


def framed(*frames: bytes) -> memoryview:
    return memoryview(bytearray(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)))


@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_a_run_of_requests_is_like_each_on_its_own(version: int) -> None:
    """Appended with one write, answered alike, the same bytes in the log."""
    frames = [produce_frame(version, batch(*[b"%d" % n] * (n % 3 + 1)), correlation_id=n) for n in range(20)]
    one_by_one, together = NodeUnderTest(), NodeUnderTest()
    for node in (one_by_one, together):
        node.create_topic("t", index_interval_bytes="100")
        node.handle(produce_frame(version, batch(b"first")))
    expected = [joined(one_by_one.handle(frame)) for frame in frames]
    buffer = framed(*frames, produce_frame(version, batch(b"x"), client_id=b"other"))
    run = together.dispatcher.produce_fast_path.run(together.context, buffer, 0, len(buffer))
    assert run is not None
    answers, start = run
    assert answers == expected
    assert start == sum(len(frame) + 4 for frame in frames), "a frame of another template ends the run"
    logs = [node.broker.replicas.led["t", 0].log for node in (one_by_one, together)]
    contents = [log.active.file.read(0, log.size_bytes) for log in logs]
    assert contents[0] == contents[1] and logs[0].log_end_offset == logs[1].log_end_offset
    for log in logs:
        log.write_indexes()
    for kind in (".index", ".timeindex"):
        written = [
            node.disk.open(f"/data/t-0/{0:020d}{kind}", create=False) for node in (one_by_one, together)
        ]
        assert written[0].read(0, 1 << 16) == written[1].read(0, 1 << 16) != b""


def test_a_run_that_cannot_be_written_together_changes_nothing() -> None:
    node = NodeUnderTest()
    node.create_topic("t", segment_bytes="300")
    node.handle(produce_frame(9, batch(b"first")))
    frames = [produce_frame(9, batch(b"x" * 50), correlation_id=n) for n in range(5)]
    buffer = framed(*frames)
    before = bytes(buffer)
    assert node.dispatcher.produce_fast_path.run(node.context, buffer, 0, len(buffer)) is None, (
        "the segment must roll"
    )
    assert bytes(buffer) == before and node.broker.replicas.led["t", 0].log.log_end_offset == 1
    idempotent = [
        produce_frame(9, batch(b"x", producer_id=1, producer_epoch=0, base_sequence=n)) for n in (0, 1)
    ]
    buffer = framed(*idempotent)
    assert node.dispatcher.produce_fast_path.run(node.context, buffer, 0, len(buffer)) is None


def test_a_run_on_a_full_disk_is_refused_whole() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    node.handle(produce_frame(9, batch(b"first")))
    node.disk.fail_operation(1)
    buffer = framed(*[produce_frame(9, batch(b"x"), correlation_id=n) for n in range(3)])
    run = node.dispatcher.produce_fast_path.run(node.context, buffer, 0, len(buffer))
    assert run is not None
    assert all(struct.pack(">ih", 0, ErrorCode.KAFKA_STORAGE_ERROR) in answer for answer in run[0])
    assert node.broker.replicas.led["t", 0].log.log_end_offset == 1
    assert struct.pack(">ihq", 0, 0, 1) in joined(node.handle(produce_frame(9, batch(b"y"))))


def test_shapes_are_forgotten_with_the_image_and_bounded_in_bytes() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    for number in range(1000):
        node.handle(produce_frame(9, batch(b"x"), client_id=b"%04d" % number + b"c" * 1500))
        templates = node.context.produce_templates
        assert node.context.produce_templates_bytes == sum(map(len, templates))
        assert node.context.produce_templates_bytes <= TEMPLATES_BYTES_MAX + TEMPLATE_BYTES_MAX
    node.create_topic("another")
    node.handle(produce_frame(9, batch(b"x"), client_id=b"0999" + b"c" * 1500))
    assert len(node.context.produce_templates) == 1, "the others lead to what may be gone"


def test_connections_share_shapes_that_are_alike() -> None:
    node = NodeUnderTest()
    node.create_topic("t", 2)
    contexts = [ConnectionContext("127.0.0.1", port, "PLAINTEXT") for port in range(3)]

    def kept(context: ConnectionContext, version: int, partition: int = 0) -> tuple[bytes, ProduceTemplate]:
        node.context = context
        node.handle(produce_frame(version, batch(b"x"), partition=partition))
        return list(context.produce_templates.items())[-1]

    key, template = kept(contexts[0], 7)
    other_key, other_shape = kept(contexts[1], 7)
    assert other_key is key and other_shape is template
    # Versions 7 and 8 have the same bytes, and answers that differ.
    same_key, newer = kept(contexts[2], 8)
    assert same_key == key and newer.version == 8 and template.version == 7
    assert kept(contexts[0], 7, partition=1)[1].partition is node.broker.replicas.led["t", 1]
    # A new image, or another object for the partition, makes new ones.
    node.create_topic("another")
    assert not node.broker.produce_templates._templates
    anew = kept(contexts[0], 7)[1]
    assert anew is not template and anew is kept(contexts[1], 7)[1]
    node.broker.replicas.led["t", 0] = replaced = copy(node.broker.replicas.led["t", 0])
    contexts[0].forget_templates()
    assert kept(contexts[0], 7)[1].partition is replaced


@pytest.mark.parametrize("client_id", [b"%08d" + b"c" * 1500, b"%d"])
def test_what_is_kept_of_shared_shapes_is_bounded(client_id: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_templates, "KNOWN_TEMPLATES_MAX", 2_000)
    node = NodeUnderTest()
    node.create_topic("t")
    known = node.broker.produce_templates
    for number in range(2 * KNOWN_BYTES_MAX // 1500):
        node.context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")
        node.handle(produce_frame(9, batch(b"x"), client_id=client_id % number))
        assert 0 < len(known._templates) <= 2_000
        assert (
            sum(len(key) for _, key in known._templates)
            == known._keys_bytes
            <= KNOWN_BYTES_MAX + TEMPLATE_BYTES_MAX
        )


def test_a_room_that_cannot_be_reserved_is_no_fault_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is in the log by then: refusing it would leave bytes that belong to no offset."""
    node = NodeUnderTest()
    node.create_topic("t")
    node.handle(produce_frame(9, batch(b"first")))
    segment = node.broker.replicas.led["t", 0].log.active
    segment._reserve_at_bytes = 0

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(segment.file), "reserve", refuse)
    for offset in (1, 2):
        segment._reserve_at_bytes = 0
        assert struct.pack(">ihq", 0, 0, offset) in joined(node.handle(produce_frame(9, batch(b"x"))))
    log = node.broker.replicas.led["t", 0].log
    assert log.log_end_offset == 3 and log.size_bytes == segment.file.size_bytes


def test_a_partition_named_twice_waits_for_the_later_batch() -> None:
    """A retry behind a new batch has an earlier target, which must not take the place of the later one."""
    node = NodeUnderTest()
    node.create_topic("t", flush_messages="1")
    old = batch(b"old", producer_id=5, producer_epoch=0, base_sequence=0)
    partition = node.broker.replicas.led["t", 0]
    partition.append_produced(memoryview(bytearray(old)), START_MS)
    assert partition.log.recovery_point == 0, "not on the disk yet"
    targets = Targets({}, {})
    doing = Doing(-1, 9, START_MS, targets, {}, None, quick=False)
    new = batch(b"new", producer_id=5, producer_epoch=0, base_sequence=1)
    both = [(0, memoryview(bytearray(new))), (0, memoryview(bytearray(old)))]
    produced = node.broker.make_handler(APIS[PRODUCE])._append_topic(node.context, "t", both, doing)
    assert [one.base_offset for one in produced] == [1, 0]
    assert targets.flushes == {partition: 2}


def test_a_new_partition_shows_its_index_files_within_a_tick() -> None:
    node = NodeUnderTest()
    node.create_topic("t", partitions=2)
    node.handle(produce_frame(9, batch(b"first")))
    node.advance(TICK_MS)
    for partition in range(2):
        names = node.disk.list(f"/data/t-{partition}")
        assert {f"{0:020d}{kind}" for kind in (".log", ".index", ".timeindex")} <= set(names)
