"""Packets of MQTT: what is written is read again, and hostile bytes end in a PacketFault and nothing else."""

import random
from typing import Any

import mqtt5
import pytest

from tidelog.gateways.mqtt import packets
from tidelog.gateways.mqtt.faults import Malformed, PacketFault, Reason
from tidelog.gateways.mqtt.framing import PacketReader
from tidelog.gateways.mqtt.packets import (
    V5,
    V311,
    Acknowledgement,
    Answers,
    Connack,
    Connect,
    Disconnect,
    FilterOptions,
    Packet,
    Ping,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from tidelog.gateways.mqtt.properties import Kind, Property

MESSAGE: dict[int, Any] = {Property.CONTENT_TYPE: "text", Property.USER_PROPERTY: [("a", "b"), ("a", "c")]}
PACKETS: list[tuple[int, Packet]] = [
    (V311, Connect(V311, "c", False, 60, "u", b"p", Will("w/x", b"bye", 1, True))),
    (V5, Connect(V5, "", True, 0, properties={Property.SESSION_EXPIRY: 5, Property.RECEIVE_MAXIMUM: 9})),
    (V5, Connect(V5, "c", True, 0, will=Will("w", b"", 2, False, {Property.WILL_DELAY: 3}))),
    (V311, Connack(True, 0)),
    (V5, Connack(False, 0x87, {Property.ASSIGNED_CLIENT_ID: "x"})),
    (V311, Publish("a/b", b"payload")),
    (V311, Publish("a/b", b"", 1, True, True, 7)),
    (V5, Publish("a", b"x" * 300, 2, False, False, 65_535, MESSAGE)),
    *((version, Acknowledgement(kind, 9)) for version in (V311, V5) for kind in list(Kind)[3:7]),
    (V5, Acknowledgement(Kind.PUBREC, 9, 0x97, {Property.REASON_STRING: "full"})),
    (V311, Subscribe(3, [FilterOptions("a/#", 1), FilterOptions("+", 2)])),
    (V5, Subscribe(3, [FilterOptions("a/#", 1, True, True, 2)], {Property.SUBSCRIPTION_ID: 300})),
    (V5, Unsubscribe(4, ["a", "b"])),
    (V311, Answers(Kind.SUBACK, 5, [0, 1, 0x80])),
    (V5, Answers(Kind.UNSUBACK, 5, [0, 0x11])),
    (V311, Ping(Kind.PINGREQ)),
    (V311, Disconnect()),
    (V5, Disconnect(0x8E, {Property.REASON_STRING: "elsewhere"})),
]


def read(version: int, data: bytes) -> list[Packet]:
    return [packets.decode(version, first, body) for first, body in PacketReader(1 << 20).feed(data)]


@pytest.mark.parametrize(("version", "packet"), PACKETS)
def test_what_is_written_is_read_again(version: int, packet: Packet) -> None:
    assert read(version, packets.encode(version, packet)) == [packet]


def test_packets_come_in_any_pieces() -> None:
    data = b"".join(packets.encode(V5, packet) for version, packet in PACKETS if version == V5)
    whole = read(V5, data)
    for size in (1, 2, 3, 7, 100):
        reader = PacketReader(1 << 20)
        found = [
            packets.decode(V5, first, body)
            for start in range(0, len(data), size)
            for first, body in reader.feed(data[start : start + size])
        ]
        assert found == whole
        assert reader.pending_bytes == 0


def test_another_codec_reads_what_we_write_and_writes_what_we_read() -> None:
    theirs = mqtt5.PublishPacket(
        "a/b", payload=b"xyz", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=5, user_properties=[("k", "v")]
    )
    ours = Publish("a/b", b"xyz", 1, packet_id=5, properties={Property.USER_PROPERTY: [("k", "v")]})
    assert read(V5, theirs.write()) == [ours]
    again, size = mqtt5.read(memoryview(packets.encode(V5, ours)))
    assert again == theirs and size == len(packets.encode(V5, ours))
    for version, packet in PACKETS:
        # Only the newer version is spoken there, and it takes no password without a name.
        if version == V5:
            data = packets.encode(V5, packet)
            assert mqtt5.read(memoryview(data))[0].write() == data or isinstance(packet, Connect | Connack)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x38\x03\x00\x01a",  # QoS 0, again
        b"\x32\x05\x00\x01a\x00\x00",  # packet identifier 0
        b"\x30\x02\x00\x05",  # the topic is longer than the packet
        b"\x30\x04\x00\x02a\x00",  # a null character
        b"\x30\x04\x00\x02\xc3\x28",  # no UTF-8
        b"\x30\x03\x00\x01#",  # a wildcard
        b"\x80\x06\x00\x01\x00\x01a\x00",  # flags of SUBSCRIBE
        b"\x82\x06\x00\x01\x00\x01a\x03",  # QoS 3 asked for
        b"\x82\x02\x00\x01",  # no filter
        b"\x40\x03\x00\x01\x00",  # longer than a PUBACK
        b"\xc0\x01\x00",  # a PINGREQ with a body
        b"\xf0\x00",  # AUTH
    ],
)
def test_what_is_no_packet_of_311_is_refused(data: bytes) -> None:
    with pytest.raises(PacketFault):
        read(V311, data)


def test_a_large_packet_is_refused_by_its_length() -> None:
    reader = PacketReader(1_000)
    with pytest.raises(PacketFault) as refused:
        list(reader.feed(b"\x30\xff\xff\xff\x7f"))
    assert refused.value.reason == Reason.PACKET_TOO_LARGE and reader.pending_bytes == 0
    with pytest.raises(Malformed):
        list(PacketReader(1_000).feed(b"\x30\xff\xff\xff\xff\x01"))


@pytest.mark.parametrize("version", [V311, V5])
def test_hostile_bytes_end_in_a_packet_fault(version: int) -> None:
    source = random.Random(version)
    seeds = [packets.encode(each, packet) for each, packet in PACKETS]
    faults = 0
    for _ in range(6_000):
        data = bytearray(source.choice(seeds))
        for _ in range(source.randrange(1, 6)):
            where = source.randrange(len(data))
            match source.randrange(3):
                case 0:
                    data[where] = source.randrange(256)
                case 1:
                    del data[where:]
                    data += source.randbytes(source.randrange(1, 20))
                case _:
                    data[where:where] = source.randbytes(source.randrange(4))
        try:
            read(version, bytes(data))
        except PacketFault:
            faults += 1
    assert faults > 2_000
