"""The properties of MQTT 5: which there are, of what type, and in which packets they may stand."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from tidelog.gateways.mqtt import primitives
from tidelog.gateways.mqtt.faults import Malformed, ProtocolViolation
from tidelog.gateways.mqtt.primitives import Reader


class Kind(IntEnum):
    """Types of packets, the first four bits."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


#: stands for the properties of a will, which are part of CONNECT
WILL = 0


class Property(IntEnum):
    """Identifiers of properties."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_AVAILABLE = 0x28
    SUBSCRIPTION_IDS_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


#: by identifier; user properties and subscription identifiers are lists, for they may stand several times
Properties = dict[int, Any]
NONE: Mapping[int, Any] = {}
USER_PROPERTIES_MAX = 100


class _Form(NamedTuple):
    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


def _read_flag(reader: Reader) -> int:
    value = reader.byte()
    if value > 1:
        raise ProtocolViolation("a property is neither 0 nor 1")
    return value


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.text(), reader.text()


def _write_byte(value: int) -> bytes:
    return bytes((value,))


def _write_pair(value: tuple[str, str]) -> bytes:
    return primitives.text(value[0]) + primitives.text(value[1])


_FLAG = _Form(_read_flag, _write_byte)
_SHORT = _Form(Reader.short, primitives.short)
_LONG = _Form(Reader.long, primitives.long)
_VARIABLE = _Form(Reader.variable, primitives.variable)
_TEXT = _Form(Reader.text, primitives.text)
_BINARY = _Form(Reader.binary, primitives.binary)
_PAIR = _Form(_read_pair, _write_pair)

_MESSAGE = frozenset({Kind.PUBLISH, WILL})
_LOGIN = frozenset({Kind.CONNECT, Kind.CONNACK, Kind.AUTH})
_EVERYWHERE = frozenset({*Kind, WILL})
_ACKNOWLEDGING = frozenset(
    {
        Kind.CONNACK,
        Kind.PUBACK,
        Kind.PUBREC,
        Kind.PUBREL,
        Kind.PUBCOMP,
        Kind.SUBACK,
        Kind.UNSUBACK,
        Kind.DISCONNECT,
        Kind.AUTH,
    }
)
_CONNECTING = frozenset({Kind.CONNECT, Kind.CONNACK})
_CONNACK = frozenset({Kind.CONNACK})

_ROWS: dict[int, tuple[_Form, frozenset[int]]] = {
    Property.PAYLOAD_FORMAT: (_FLAG, _MESSAGE),
    Property.MESSAGE_EXPIRY: (_LONG, _MESSAGE),
    Property.CONTENT_TYPE: (_TEXT, _MESSAGE),
    Property.RESPONSE_TOPIC: (_TEXT, _MESSAGE),
    Property.CORRELATION_DATA: (_BINARY, _MESSAGE),
    Property.SUBSCRIPTION_ID: (_VARIABLE, frozenset({Kind.PUBLISH, Kind.SUBSCRIBE})),
    Property.SESSION_EXPIRY: (_LONG, frozenset({Kind.CONNECT, Kind.CONNACK, Kind.DISCONNECT})),
    Property.ASSIGNED_CLIENT_ID: (_TEXT, _CONNACK),
    Property.SERVER_KEEP_ALIVE: (_SHORT, _CONNACK),
    Property.AUTHENTICATION_METHOD: (_TEXT, _LOGIN),
    Property.AUTHENTICATION_DATA: (_BINARY, _LOGIN),
    Property.REQUEST_PROBLEM_INFORMATION: (_FLAG, frozenset({Kind.CONNECT})),
    Property.WILL_DELAY: (_LONG, frozenset({WILL})),
    Property.REQUEST_RESPONSE_INFORMATION: (_FLAG, frozenset({Kind.CONNECT})),
    Property.RESPONSE_INFORMATION: (_TEXT, _CONNACK),
    Property.SERVER_REFERENCE: (_TEXT, frozenset({Kind.CONNACK, Kind.DISCONNECT})),
    Property.REASON_STRING: (_TEXT, _ACKNOWLEDGING),
    Property.RECEIVE_MAXIMUM: (_SHORT, _CONNECTING),
    Property.TOPIC_ALIAS_MAXIMUM: (_SHORT, _CONNECTING),
    Property.TOPIC_ALIAS: (_SHORT, frozenset({Kind.PUBLISH})),
    Property.MAXIMUM_QOS: (_FLAG, _CONNACK),
    Property.RETAIN_AVAILABLE: (_FLAG, _CONNACK),
    Property.USER_PROPERTY: (_PAIR, _EVERYWHERE),
    Property.MAXIMUM_PACKET_SIZE: (_LONG, _CONNECTING),
    Property.WILDCARD_AVAILABLE: (_FLAG, _CONNACK),
    Property.SUBSCRIPTION_IDS_AVAILABLE: (_FLAG, _CONNACK),
    Property.SHARED_AVAILABLE: (_FLAG, _CONNACK),
}
_NOT_ZERO = frozenset({Property.SUBSCRIPTION_ID, Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE})


def read(reader: Reader, kind: int) -> Properties:
    """The properties that stand next; raises Malformed or ProtocolViolation."""
    size = reader.variable()
    found: Properties = {}
    if not size:
        return found
    if size > reader.left:
        raise Malformed("the properties are longer than the packet")
    inner = Reader(reader.data, reader.position, reader.position + size)
    reader.position += size
    while inner.left:
        identifier = inner.variable()
        row = _ROWS.get(identifier)
        if row is None:
            raise Malformed(f"there is no property {identifier}")
        form, kinds = row
        if kind not in kinds:
            raise ProtocolViolation(f"{Property(identifier).name} may not stand in this packet")
        value = form.read(inner)
        if identifier in _NOT_ZERO and not value:
            raise ProtocolViolation(f"{Property(identifier).name} may not be 0")
        several = identifier == Property.USER_PROPERTY or (
            identifier == Property.SUBSCRIPTION_ID and kind == Kind.PUBLISH
        )
        if several:
            values = found.setdefault(identifier, [])
            if len(values) == USER_PROPERTIES_MAX:
                raise ProtocolViolation(f"more than {USER_PROPERTIES_MAX} user properties")
            values.append(value)
        elif identifier in found:
            raise ProtocolViolation(f"{Property(identifier).name} stands twice")
        else:
            found[identifier] = value
    return found


def write(properties: Mapping[int, Any]) -> bytes:
    if not properties:
        return b"\0"
    parts: list[bytes] = []
    for identifier, value in properties.items():
        head = bytes((identifier,))
        write_one = _ROWS[identifier][0].write
        if isinstance(value, list):
            parts += [head + write_one(each) for each in value]
        else:
            parts.append(head + write_one(value))
    body = b"".join(parts)
    return primitives.variable(len(body)) + body
