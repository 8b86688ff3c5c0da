"""Frames from bytes: whole, in pieces, and hostile ones, which end in a ConnectionFault and nothing else."""

import contextlib
import random
import struct
import time

import pytest
from pamqp import commands, frame
from pamqp.header import ContentHeader

from tidelog.gateways.amqp import framing
from tidelog.gateways.amqp.faults import ConnectionFault
from tidelog.gateways.amqp.framing import Ack, FrameReader, Publish, RawFrame

PROPERTIES = commands.Basic.Properties(content_type="text/plain", headers={"a": [1, {"b": None}]})
SAMPLES = [
    frame.marshal(commands.Basic.Publish(0, "ex", "key", True), 1),
    frame.marshal(commands.Basic.Ack(9, True), 2),
    frame.marshal(commands.Queue.Declare(0, "q", arguments={"x-max-priority": 9}), 3),
    frame.marshal(ContentHeader(0, 5, PROPERTIES), 4),
    framing.HEARTBEAT_FRAME,
]
SECONDS_MAX = 5.0


def decoded(raw: RawFrame) -> object:
    if raw.type == framing.METHOD:
        return framing.decode_method(raw)
    return framing.decode_header(raw) if raw.type == framing.HEADER else raw


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_come_whole_however_they_arrive(size: int) -> None:
    reader, stream = FrameReader(), b"".join(SAMPLES)
    found = []
    for start in range(0, len(stream), size):
        found += list(reader.feed(stream[start : start + size]))
    assert [raw.channel for raw in found] == [1, 2, 3, 4, 0]
    assert decoded(found[0]) == Publish("ex", "key", True, False)
    assert decoded(found[1]) == Ack(9, True)
    assert len(reader) == 0


def test_what_is_written_here_is_what_pamqp_writes() -> None:
    ours = framing.encode_deliver(5, framing.short("tag"), 7, True, "ex", "key")
    assert ours == frame.marshal(commands.Basic.Deliver("tag", 7, True, "ex", "key"), 5)
    assert framing.encode_ack(5, 7, True) == frame.marshal(commands.Basic.Ack(7, True), 5)
    content = b"".join(framing.encode_content(5, PROPERTIES.marshal(), b"x" * 10_000, 4_096))
    reader = FrameReader()
    frames = list(reader.feed(content))
    assert [len(raw.payload) for raw in frames[1:]] == [4_088, 4_088, 1_824]


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x01\x7f\xff\xff\xff",
        b"\x03\x00\x01\x00\x02\x00\x00",
        b"\x02\x00\x01\x00\x00\xff\xff",
        b"\x04\x00\x01\x00\x00\x00\x01",
        b"\x01\x00\x01\x00\x00\x00\x01A\x00",
    ],
)
def test_sizes_and_types_are_refused_before_anything_is_kept(data: bytes) -> None:
    reader = FrameReader()
    with pytest.raises(ConnectionFault):
        list(reader.feed(data + b"\x00" * 100))


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    return struct.pack(">I", len(table)) + table


def test_tables_that_are_deep_or_long_cost_little() -> None:
    start = struct.pack(">I", 0x0032000A) + b"\x00\x00\x01q\x00"
    long_table = b"\x01aV" * 9_000
    for table in (nested(3_000), struct.pack(">I", len(long_table)) + long_table):
        payload = (start + table)[: framing.METHOD_BYTES_MAX]
        begun = time.monotonic()
        with contextlib.suppress(ConnectionFault):
            framing.decode_method(RawFrame(framing.METHOD, 1, payload))
        assert time.monotonic() - begun < SECONDS_MAX


def test_bytes_changed_at_random_are_read_or_refused() -> None:
    choices = random.Random(23)
    refused = 0
    for _ in range(4_000):
        data = bytearray(choices.choice(SAMPLES))
        for _ in range(choices.randint(1, 4)):
            data[choices.randrange(7, len(data) - 1) if len(data) > 9 else 0] = choices.randrange(256)
        try:
            for raw in FrameReader().feed(bytes(data)):
                decoded(raw)
        except ConnectionFault:
            refused += 1
    assert refused > 200
