"""Packets of MQTT 3.1.1 and 5, from bytes and to bytes, as a server reads and writes them; no I/O.

`decode` takes one whole packet, as `framing` cuts it: its first byte and what follows the remaining length.
The version is that of the connection; CONNECT says its own. Both directions are here, so that tests read
what a server writes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tidelog.gateways.mqtt import primitives, properties
from tidelog.gateways.mqtt.faults import Malformed, PacketFault, ProtocolViolation, Reason
from tidelog.gateways.mqtt.filters import topic_fault
from tidelog.gateways.mqtt.primitives import Reader
from tidelog.gateways.mqtt.properties import NONE, WILL, Kind, Properties, Property

V311 = 4
V5 = 5
_VERSIONS = {b"MQTT": (V311, V5), b"MQIsdp": (3,)}


def _no_properties() -> Mapping[int, Any]:
    return NONE


@dataclass(slots=True)
class Will:
    """The message that is published when a client goes without saying goodbye."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    version: int
    client_id: str
    clean_start: bool
    keep_alive_seconds: int
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connack:
    session_present: bool
    reason: int
    properties: Mapping[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    duplicate: bool = False
    packet_id: int = 0
    properties: Mapping[int, Any] = field(default_factory=_no_properties)


@dataclass(slots=True)
class Acknowledgement:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    kind: Kind
    packet_id: int
    reason: int = 0
    properties: Mapping[int, Any] = field(default_factory=_no_properties)


@dataclass(slots=True)
class FilterOptions:
    """One filter of SUBSCRIBE."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    filters: Sequence[FilterOptions]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: Sequence[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Answers:
    """SUBACK or UNSUBACK: a reason for each filter."""

    kind: Kind
    packet_id: int
    reasons: Sequence[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Ping:
    """PINGREQ or PINGRESP."""

    kind: Kind


@dataclass(slots=True)
class Disconnect:
    reason: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    reason: int = 0
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | Connack
    | Publish
    | Acknowledgement
    | Subscribe
    | Unsubscribe
    | Answers
    | Ping
    | Disconnect
    | Auth
)

FILTERS_MAX = 1_000


# Reading


def decode(version: int, first: int, body: bytes) -> Packet:
    """One packet; raises PacketFault."""
    kind = first >> 4
    if kind == Kind.PUBLISH:
        return _decode_publish(version, first, body)
    if kind == 0:
        raise Malformed("there is no packet of type 0")
    expected = 2 if kind in (Kind.PUBREL, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE) else 0
    if first & 0x0F != expected:
        raise Malformed(f"the flags of {Kind(kind).name} are {first & 0x0F}, not {expected}")
    reader = Reader(body)
    if Kind.PUBACK <= kind <= Kind.PUBCOMP:
        packet: Packet = _decode_acknowledgement(version, Kind(kind), reader)
    elif kind in (Kind.PINGREQ, Kind.PINGRESP):
        packet = Ping(Kind(kind))
    elif kind == Kind.AUTH:
        if version < V5:
            raise Malformed("there is no packet of type 15")
        packet = Auth(*_reason_and_properties(version, Kind.AUTH, reader))
    elif kind == Kind.DISCONNECT:
        packet = Disconnect(*_reason_and_properties(version, Kind.DISCONNECT, reader))
    else:
        packet = _DECODERS[Kind(kind)](version, reader)
    reader.ended()
    return packet


@lru_cache(maxsize=4096)
def _topic_name(name: bytes) -> str:
    """A topic that is published to; clients use few. Empty where an alias may stand for it."""
    topic = Reader(primitives.binary(name)).text()
    fault = topic_fault(topic) if topic else None
    if fault is not None:
        raise PacketFault(Reason.TOPIC_NAME_INVALID, fault)
    return topic


def _decode_publish(version: int, first: int, body: bytes) -> Publish:
    qos = first >> 1 & 3
    if qos == 3:
        raise Malformed("there is no QoS 3")
    if first & 8 and not qos:
        raise Malformed("QoS 0 is never sent again")
    reader = Reader(body)
    name = reader.binary()
    topic = _topic_name(name)
    packet_id = reader.short() if qos else 0
    if qos and not packet_id:
        raise Malformed("packet identifiers begin with 1")
    found: Mapping[int, Any] = NONE
    if version >= V5:
        found = properties.read(reader, Kind.PUBLISH)
    if not topic and Property.TOPIC_ALIAS not in found:
        raise ProtocolViolation("a message has a topic")
    return Publish(topic, reader.rest(), qos, bool(first & 1), bool(first & 8), packet_id, found)


def _decode_acknowledgement(version: int, kind: Kind, reader: Reader) -> Acknowledgement:
    packet_id = reader.short()
    if not packet_id:
        raise Malformed("packet identifiers begin with 1")
    if not reader.left:
        return Acknowledgement(kind, packet_id)
    if version < V5:
        raise Malformed("there are bytes behind the end of the packet")
    return Acknowledgement(kind, packet_id, *_reason_and_properties(version, kind, reader))


def _reason_and_properties(version: int, kind: Kind, reader: Reader) -> tuple[int, Properties]:
    if version < V5 or not reader.left:
        return 0, {}
    reason = reader.byte()
    return reason, properties.read(reader, kind) if reader.left else {}


def _decode_connect(_: int, reader: Reader) -> Connect:
    name = reader.binary()
    version = reader.byte()
    if version not in _VERSIONS.get(name, ()) or version < V311:
        if name not in _VERSIONS:
            raise Malformed("this is no MQTT")
        raise PacketFault(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"version {version} is not spoken here")
    flags = reader.byte()
    if flags & 1:
        raise Malformed("the reserved flag of CONNECT is set")
    keep_alive = reader.short()
    found = properties.read(reader, Kind.CONNECT) if version >= V5 else {}
    client_id = reader.text()
    will_qos = flags >> 3 & 3
    will = None
    if flags & 0x04:
        if will_qos == 3:
            raise Malformed("there is no QoS 3")
        will_properties = properties.read(reader, WILL) if version >= V5 else {}
        topic = reader.text()
        fault = topic_fault(topic)
        if fault is not None:
            raise PacketFault(Reason.TOPIC_NAME_INVALID, fault)
        will = Will(topic, reader.binary(), will_qos, bool(flags & 0x20), will_properties)
    elif flags & 0x38:
        raise Malformed("flags of a will without a will")
    if version < V5 and flags & 0x40 and not flags & 0x80:
        raise Malformed("a password without a user name")
    user_name = reader.text() if flags & 0x80 else None
    password = reader.binary() if flags & 0x40 else None
    return Connect(version, client_id, bool(flags & 2), keep_alive, user_name, password, will, found)


def _decode_connack(version: int, reader: Reader) -> Connack:
    flags, reason = reader.byte(), reader.byte()
    return Connack(bool(flags & 1), reason, properties.read(reader, Kind.CONNACK) if version >= V5 else {})


def _packet_id(reader: Reader) -> int:
    packet_id = reader.short()
    if not packet_id:
        raise Malformed("packet identifiers begin with 1")
    return packet_id


def _decode_subscribe(version: int, reader: Reader) -> Subscribe:
    packet_id = _packet_id(reader)
    found = properties.read(reader, Kind.SUBSCRIBE) if version >= V5 else {}
    filters: list[FilterOptions] = []
    while reader.left:
        text, options = reader.text(), reader.byte()
        reserved = 0xC0 if version >= V5 else 0xFC
        if options & reserved or options & 3 == 3:
            raise Malformed("options of a subscription that do not exist")
        handling = options >> 4 & 3
        if handling == 3:
            raise ProtocolViolation("there is no retain handling 3")
        filters.append(FilterOptions(text, options & 3, bool(options & 4), bool(options & 8), handling))
        if len(filters) > FILTERS_MAX:
            raise PacketFault(Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} filters in a packet")
    if not filters:
        raise ProtocolViolation("SUBSCRIBE without a filter")
    return Subscribe(packet_id, filters, found)


def _decode_unsubscribe(version: int, reader: Reader) -> Unsubscribe:
    packet_id = _packet_id(reader)
    found = properties.read(reader, Kind.UNSUBSCRIBE) if version >= V5 else {}
    filters: list[str] = []
    while reader.left:
        filters.append(reader.text())
        if len(filters) > FILTERS_MAX:
            raise PacketFault(Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} filters in a packet")
    if not filters:
        raise ProtocolViolation("UNSUBSCRIBE without a filter")
    return Unsubscribe(packet_id, filters, found)


def _decode_suback(version: int, reader: Reader) -> Answers:
    packet_id = _packet_id(reader)
    found = properties.read(reader, Kind.SUBACK) if version >= V5 else {}
    return Answers(Kind.SUBACK, packet_id, list(reader.rest()), found)


def _decode_unsuback(version: int, reader: Reader) -> Answers:
    packet_id = _packet_id(reader)
    found = properties.read(reader, Kind.UNSUBACK) if version >= V5 else {}
    return Answers(Kind.UNSUBACK, packet_id, list(reader.rest()), found)


_DECODERS: dict[Kind, Callable[[int, Reader], Packet]] = {
    Kind.CONNECT: _decode_connect,
    Kind.CONNACK: _decode_connack,
    Kind.SUBSCRIBE: _decode_subscribe,
    Kind.SUBACK: _decode_suback,
    Kind.UNSUBSCRIBE: _decode_unsubscribe,
    Kind.UNSUBACK: _decode_unsuback,
}


# Writing


def encode(version: int, packet: Packet) -> bytes:
    match packet:
        case Publish():
            return _encode_publish(version, packet)
        case Acknowledgement():
            return _encode_acknowledgement(version, packet)
        case Ping():
            return bytes((packet.kind << 4, 0))
        case Connack():
            body = bytes((packet.session_present, packet.reason))
            return _framed(Kind.CONNACK << 4, body + _tail(version, packet.properties))
        case Answers():
            body = primitives.short(packet.packet_id) + _tail(version, packet.properties)
            reasons = bytes(packet.reasons) if version >= V5 or packet.kind == Kind.SUBACK else b""
            return _framed(packet.kind << 4, body + reasons)
        case Disconnect() | Auth():
            kind = Kind.DISCONNECT if isinstance(packet, Disconnect) else Kind.AUTH
            if version < V5 or not (packet.reason or packet.properties):
                return bytes((kind << 4, 0))
            return _framed(kind << 4, bytes((packet.reason,)) + properties.write(packet.properties))
        case Subscribe():
            body = primitives.short(packet.packet_id) + _tail(version, packet.properties)
            rows = [primitives.text(row.filter) + bytes((_options(version, row),)) for row in packet.filters]
            return _framed(Kind.SUBSCRIBE << 4 | 2, body + b"".join(rows))
        case Unsubscribe():
            body = primitives.short(packet.packet_id) + _tail(version, packet.properties)
            return _framed(Kind.UNSUBSCRIBE << 4 | 2, body + b"".join(map(primitives.text, packet.filters)))
        case Connect():
            return _encode_connect(packet)


def _tail(version: int, found: Mapping[int, Any]) -> bytes:
    return properties.write(found) if version >= V5 else b""


def _framed(first: int, body: bytes) -> bytes:
    return b"".join((bytes((first,)), primitives.variable(len(body)), body))


def _options(version: int, row: FilterOptions) -> int:
    if version < V5:
        return row.qos
    return row.qos | row.no_local << 2 | row.retain_as_published << 3 | row.retain_handling << 4


def _encode_publish(version: int, packet: Publish) -> bytes:
    first = 0x30 | packet.duplicate << 3 | packet.qos << 1 | packet.retain
    topic = packet.topic.encode()
    head = primitives.binary(topic)
    if packet.qos:
        head += primitives.short(packet.packet_id)
    if version >= V5:
        head += properties.write(packet.properties)
    size = len(head) + len(packet.payload)
    return b"".join((bytes((first,)), primitives.variable(size), head, packet.payload))


def _encode_acknowledgement(version: int, packet: Acknowledgement) -> bytes:
    first = packet.kind << 4 | (2 if packet.kind == Kind.PUBREL else 0)
    packet_id = packet.packet_id
    if version < V5 or not (packet.reason or packet.properties):
        return bytes((first, 2, packet_id >> 8, packet_id & 0xFF))
    body = primitives.short(packet_id) + bytes((packet.reason,))
    return _framed(first, body + (properties.write(packet.properties) if packet.properties else b""))


def _encode_connect(packet: Connect) -> bytes:
    flags = packet.clean_start << 1
    payload = primitives.text(packet.client_id)
    if packet.will is not None:
        will = packet.will
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        payload += _tail(packet.version, will.properties)
        payload += primitives.text(will.topic) + primitives.binary(will.payload)
    if packet.user_name is not None:
        flags |= 0x80
        payload += primitives.text(packet.user_name)
    if packet.password is not None:
        flags |= 0x40
        payload += primitives.binary(packet.password)
    head = primitives.text("MQTT") + bytes((packet.version, flags))
    head += primitives.short(packet.keep_alive_seconds) + _tail(packet.version, packet.properties)
    return _framed(Kind.CONNECT << 4, head + payload)
