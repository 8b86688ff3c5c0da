"""Produce requests whose batches take long to check: held, checked elsewhere, served in order."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.node import START_MS, NodeUnderTest, produce_frame
from tidelog.broker.requests import checked_batches, long_checks
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import HELD
from tidelog.model.errors import ErrorCode
from tidelog.protocol.produce import ProduceRequest
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tidelog.records.validation import QUICK_RECORDS_MAX

MANY = QUICK_RECORDS_MAX + 1


class ByHand:
    """A background whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.waiting.append((work, then))

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def do(self) -> None:
        work, then = self.waiting.pop(0)
        then(work())


def batch(count: int, *, key: bytes | None = b"k", value: bytes = b"v", codec: Codec = Codec.ZSTD) -> bytes:
    return bytes(build_batch([Record(n, START_MS, key, value) for n in range(count)], codec=codec))


@pytest.fixture
def node() -> NodeUnderTest:
    made = NodeUnderTest()
    made.create_topic("t", cleanup_policy="compact")
    made.broker.long_checks._background = ByHand()
    return made


def background(node: NodeUnderTest) -> ByHand:
    found = node.broker.long_checks._background
    assert isinstance(found, ByHand)
    return found


def told(node: NodeUnderTest) -> list[bool]:
    """What becomes true when the held request shall be offered again; as the connection, it asks once."""
    calls: list[bool] = []
    wait_for, node.context.wait_for = node.context.wait_for, None
    assert wait_for is not None
    wait_for(lambda: calls.append(True))
    return calls


def error_and_offset(answer: Any) -> tuple[int, int]:
    # size, correlation id, tags, topics, name, partitions, index, error, offset
    code, offset = struct.unpack_from(">hq", answer, 4 + 4 + 1 + 1 + 2 + 1 + 4)
    return code, offset


@pytest.mark.parametrize("codec", Codec)
def test_a_long_batch_is_held_checked_and_appended(node: NodeUnderTest, codec: Codec) -> None:
    frame = produce_frame(9, batch(MANY, codec=codec))
    assert node.handle(frame) is HELD
    calls = told(node)
    log = node.broker.replicas.led["t", 0].log
    assert log.log_end_offset == 0 and not calls
    background(node).do()
    assert calls == [True] and log.log_end_offset == 0, "only its own connection serves it"
    assert error_and_offset(node.handle(frame)) == (0, 0)
    assert log.log_end_offset == MANY
    assert node.context.checked is None and node.context.wait_for is None
    # The next one is looked at anew.
    assert node.handle(frame) is HELD


def test_a_batch_that_is_large_once_unpacked_takes_long_too(node: NodeUnderTest) -> None:
    assert node.handle(produce_frame(9, batch(3, value=bytes(1 << 20)))) is HELD
    assert node.handle(produce_frame(9, batch(3))) is not HELD


def test_what_is_wrong_with_it_is_told(node: NodeUnderTest) -> None:
    frame = produce_frame(9, batch(MANY, key=None))
    assert node.handle(frame) is HELD
    background(node).do()
    assert error_and_offset(node.handle(frame))[0] == ErrorCode.INVALID_RECORD
    assert node.broker.replicas.led["t", 0].log.log_end_offset == 0


def test_rules_that_changed_meanwhile_count(node: NodeUnderTest) -> None:
    frame = produce_frame(9, batch(MANY, key=None))
    assert node.handle(frame) is HELD
    background(node).do()
    partition = node.broker.replicas.led["t", 0]
    partition.reconfigure(node.broker.settings.log_config({}))
    assert error_and_offset(node.handle(frame)) == (0, 0), "not compacted any more: keys are not needed"


def test_a_partition_named_twice_gets_what_was_found_of_each_batch(node: NodeUnderTest) -> None:
    short, long = bytearray(batch(1)), bytearray(batch(MANY))
    request = ProduceRequest(None, 1, 1000, [("t", [(0, memoryview(short)), (0, memoryview(long))])])
    checks, context = node.broker.long_checks, node.context
    assert not checks.begin(context, request, START_MS, lambda topic: True)
    background(node).do()
    assert context.checked is not None
    [quick, checked] = context.checked["t", 0]
    assert quick is None and checked is not None
    rules = node.broker.replicas.led["t", 0].rules
    assert checked_batches.take(context.checked, "t", 0, memoryview(short), rules) is None
    assert checked_batches.take(context.checked, "t", 0, memoryview(long), rules) is checked.checked
    assert checked_batches.take(context.checked, "t", 0, memoryview(long), rules) is None


def test_what_was_found_is_for_that_request_alone(node: NodeUnderTest) -> None:
    """A topic that needs no look any more when the frame is offered again: not by the fast path."""
    assert error_and_offset(node.handle(produce_frame(9, batch(1)))) == (0, 0)
    held = produce_frame(9, batch(MANY))
    assert node.handle(held) is HELD
    background(node).do()
    node.broker.replicas.led["t", 0].reconfigure(node.broker.settings.log_config({}))
    assert error_and_offset(node.handle(held)) == (0, 1)
    assert node.context.checked is None
    assert error_and_offset(node.handle(produce_frame(9, batch(1)))) == (0, 1 + MANY)


def test_nothing_is_unpacked_for_who_may_not_write(node: NodeUnderTest) -> None:
    request = ProduceRequest(None, 1, 1000, [("t", [(0, memoryview(bytearray(batch(MANY))))])])
    assert node.broker.long_checks.begin(node.context, request, START_MS, lambda topic: False)
    assert node.context.checked is None and not background(node).waiting


def test_a_topic_whose_records_need_no_look_holds_nobody(node: NodeUnderTest) -> None:
    node.create_topic("plain")
    frame = produce_frame(9, batch(MANY), topic="plain")
    assert error_and_offset_of("plain", node.handle(frame)) == (0, 0)


def error_and_offset_of(topic: str, answer: Any) -> tuple[int, int]:
    code, offset = struct.unpack_from(">hq", answer, 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4)
    return code, offset


def test_one_giant_at_a_time_and_others_beside_it(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_checks, "GIANT_RECORDS", MANY)
    checks = node.broker.long_checks

    def begin(count: int) -> ConnectionContext:
        context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")
        records = memoryview(bytearray(batch(count)))
        request = ProduceRequest(None, 1, 1000, [("t", [(0, records)])])
        assert not checks.begin(context, request, START_MS, lambda topic: True)
        return context

    begin(MANY + 1)
    second = begin(MANY + 1)
    begin(MANY)
    assert len(background(node).waiting) == 2, "the second giant waits, the other does not"
    again: list[bool] = []
    assert second.wait_for is not None
    second.wait_for(lambda: again.append(True))
    background(node).do()
    assert again == [True] and second.checked is None, "offered again, and begins then"


def test_copies_are_bounded(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_checks, "COPIES_BYTES_MAX", 10)
    checks = node.broker.long_checks
    for number in range(3):
        context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")
        records = memoryview(bytearray(batch(MANY)))
        request = ProduceRequest(None, 1, 1000, [("t", [(0, records)])])
        assert not checks.begin(context, request, START_MS, lambda topic: True), number
    # One that is larger than all is allowed is alone.
    assert len(background(node).waiting) == 1
