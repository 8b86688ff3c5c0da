"""Share groups and what records say of themselves: expired ones are not delivered, urgent ones come first."""

import pytest

from tests.unit.broker.node import NodeUnderTest, produce_frame
from tests.unit.broker.share_members import RELEASE, ShareMember, configure, sharing_node
from tests.unit.broker.test_broker_share_dead_letters import (
    GROUP_ENABLE,
    LETTERS,
    TOPIC_NAME,
    letters_of,
    told,
)
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tidelog.storage.cleaner import read_batches


def node_with(**configs: str) -> NodeUnderTest:
    """A node with the topic `q`, whose records are obeyed."""
    node = sharing_node()
    node.create_topic("q", 1, **configs)
    return node


def send(
    node: NodeUnderTest, *rows: tuple[bytes, str, str], codec: Codec = Codec.NONE, age_ms: int = 0
) -> None:
    """One batch of values, each with a header (or none, if its name is empty)."""
    time_ms = node.clock.time_ms - age_ms
    records = [
        Record(index, time_ms, b"k", value, ((name, text.encode()),) if name else ())
        for index, (value, name, text) in enumerate(rows)
    ]
    node.handle(produce_frame(7, bytes(build_batch(records, codec=codec)), "q", 0))


def reader(node: NodeUnderTest) -> ShareMember:
    return ShareMember(node, topic="q").join()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_expired_records_are_not_delivered(codec: Codec) -> None:
    node = node_with(tidelog_ttl_enable="true", tidelog_ttl_ms="60000")
    send(node, (b"a", "tidelog-ttl-ms", "100"), (b"b", "", ""), (b"c", "tidelog-ttl-ms", "0"), codec=codec)
    member = reader(node)
    node.advance(200)
    assert member.take() == [b"b"]
    send(node, (b"d", "", ""))
    node.advance(60_000)
    send(node, (b"e", "", ""))
    assert member.take() == [b"e"]


def test_records_expire_while_they_wait_to_be_tried_again() -> None:
    node = node_with(tidelog_ttl_enable="true")
    send(node, (b"a", "tidelog-ttl-ms", "5000"), (b"b", "", ""))
    member = reader(node)
    assert member.take() == [b"a", b"b"]
    assert member.acknowledge(0, (0, 1, RELEASE)) is ErrorCode.NONE
    node.advance(6_000)
    assert member.take() == [b"b"]


def test_expired_records_become_dead_letters() -> None:
    node = node_with(tidelog_ttl_enable="true")
    node.create_topic(LETTERS, 1, **{GROUP_ENABLE: "true"})
    configure(node, TOPIC_NAME, LETTERS)
    send(node, (b"a", "tidelog-ttl-ms", "0"), (b"b", "", ""))
    member = reader(node)
    node.advance(10)
    assert member.take() == [b"b"]
    [letter] = letters_of(node.broker.replicas.led[LETTERS, 0])
    assert told(letter)["offset"] == "0"
    assert "time to live" in told(letter)["message"]


def test_topics_that_did_not_opt_in_are_not_looked_into() -> None:
    node = node_with()
    send(node, (b"a", "tidelog-ttl-ms", "0"), (b"b", "tidelog-priority", "9"))
    member = reader(node)
    node.advance(1_000)
    assert member.take() == [b"a", b"b"]


def urgent(node: NodeUnderTest, *priorities: int) -> None:
    send(
        node,
        *((b"%d-%d" % (each, index), "tidelog-priority", str(each)) for index, each in enumerate(priorities)),
    )


def taken(member: ShareMember, count: int) -> list[bytes]:
    """One record at a time, each accepted."""
    found = []
    for _ in range(count):
        values = member.take(max_records=1, share_acquire_mode=1)
        assert len(values) == 1
        found += values
    return found


def test_higher_priorities_come_first_then_offsets() -> None:
    node = node_with(tidelog_priority_enable="true")
    urgent(node, 0, 9, 4, 9, 5)
    send(node, (b"none", "", ""))
    assert taken(reader(node), 6) == [b"9-1", b"9-3", b"5-4", b"4-2", b"none", b"0-0"]


def test_no_record_starves() -> None:
    node = node_with(tidelog_priority_enable="true", tidelog_priority_ageing_ms="1000")
    urgent(node, 0)
    member = reader(node)
    overtook: list[int] = []
    for second in range(1, 41):
        node.advance(1_000)
        # Twice as many as are taken.
        send(node, *((b"%d" % second, "tidelog-priority", "9") for _ in range(2)))
        [value] = taken(member, 1)
        if value == b"0-0":
            break
        overtook.append(int(value))
    assert value == b"0-0"
    # Nine priorities are made up for in nine seconds: what came later does not overtake it.
    assert max(overtook) <= 9


@pytest.mark.parametrize("priorities", ["true", "false"])
def test_the_window_passes_what_the_cleaner_removed(priorities: str) -> None:
    node = node_with(
        tidelog_ttl_enable="true",
        tidelog_priority_enable=priorities,
        segment_bytes="20000",
        min_cleanable_dirty_ratio="0",
    )
    wanted = []
    for number in range(60):
        rows = [(b"%d-%d" % (number, each), "tidelog-ttl-ms", "100") for each in range(18)]
        last = (b"%d" % number, "tidelog-priority", str(number % 10))
        send(node, *rows[:9], last, *rows[9:])
        wanted.append(last[0])
    node.advance(60_000)
    closed = node.broker.replicas.led["q", 0].log.segments[:-1]
    kept = [header.records_count for each in closed for header, _ in read_batches(each.file, each.size_bytes)]
    assert kept
    assert max(kept) == 1, "the cleaner has been there"
    member = reader(node)
    seen = [value for _ in range(200) for value in member.take(max_records=10)]
    assert sorted(seen) == sorted(wanted)


def test_bad_headers_are_refused_where_they_are_obeyed() -> None:
    node = node_with(tidelog_priority_enable="true", tidelog_ttl_enable="true")
    log = node.broker.replicas.led["q", 0].log
    for name, text in (
        ("tidelog-priority", "10"),
        ("tidelog-priority", "-1"),
        ("tidelog-priority", ""),
        ("tidelog-ttl-ms", "soon"),
        ("tidelog-ttl-ms", "-1"),
    ):
        send(node, (b"x", "", ""), (b"y", name, text))
        assert log.log_end_offset == 0
    send(node, (b"z", "tidelog-priority", "0"))
    assert log.log_end_offset == 1
