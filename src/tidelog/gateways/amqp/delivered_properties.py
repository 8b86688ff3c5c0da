"""The properties of a record as AMQP sends them, written without going through values.

What is delivered is written from the record's headers as `messages.from_record` reads them, for deliveries
are what a gateway does most. What does not fit AMQP is left out: a header whose name is too long, and all
headers together when they would not fit into a frame.
"""

import struct
from typing import NamedTuple

from tidelog.gateways.amqp.framing import short
from tidelog.gateways.amqp.messages import (
    DELIVERIES_HEADER,
    DELIVERY_MODE_HEADER,
    EXCHANGE_HEADER,
    KEY_HEADER,
    PRIORITY_HEADER,
    PRIORITY_MAX,
    ROUTING_KEY_HEADER,
    TABLE_HEADER,
    TIMESTAMP_HEADER,
    TTL_HEADER,
    whole_table,
)
from tidelog.records.record import Record

#: the places of the properties, from the highest bit of the flags on
_PLACES = {
    "amqp.content-type": 0,
    "amqp.content-encoding": 1,
    "amqp.correlation-id": 5,
    "amqp.reply-to": 6,
    "amqp.message-id": 8,
    "amqp.message-type": 10,
    "amqp.user-id": 11,
    "amqp.app-id": 12,
}
_HEADERS, _DELIVERY_MODE, _PRIORITY, _EXPIRATION, _TIMESTAMP, _COUNT = 2, 3, 4, 7, 9, 13
_LENGTH, _TIME = struct.Struct(">I"), struct.Struct(">Q")
_FLAGS, _COUNT_OF_DELIVERIES = struct.Struct(">H"), struct.Struct(">i")
_NUMBER_DIGITS_MAX = 12
_COUNT_HEADER = b"\x10x-delivery-countI"


class Delivered(NamedTuple):
    """Where a message was published to, and its properties, written."""

    exchange: str
    routing_key: str
    properties: bytes


def delivered(record: Record, topic: str, deliveries: int, bytes_max: int) -> Delivered:
    """What is sent of a record besides its body; `bytes_max` is room for the properties."""
    exchange, routing_key = "", topic
    places: list[bytes | None] = [None] * _COUNT
    table: list[bytes] = []
    for name, raw in record.headers:
        value = raw or b""
        place = _PLACES.get(name)
        if place is not None:
            if value:
                places[place] = short(value.decode("utf-8", "replace"))
        elif name == ROUTING_KEY_HEADER:
            routing_key = value.decode("utf-8", "replace")
        elif name == EXCHANGE_HEADER:
            exchange = value.decode("utf-8", "replace")
        elif name == TABLE_HEADER:
            table.append(value[4:] if whole_table(value) else _field(TABLE_HEADER, value))
        elif name in _NUMBERS:
            _set_number(places, name, value)
        elif name != DELIVERIES_HEADER:
            table.append(_field(name, value))
    if record.key is not None:
        table.append(_field(KEY_HEADER, record.key))
    if deliveries > 1:
        table.append(_COUNT_HEADER + _COUNT_OF_DELIVERIES.pack(deliveries - 1))
    written = b"".join(table)
    if written and len(written) < bytes_max - sum(len(part or b"") for part in places):
        places[_HEADERS] = _LENGTH.pack(len(written)) + written
    flags = 0
    for place, part in enumerate(places):
        if part is not None:
            flags |= 0x8000 >> place
    return Delivered(exchange, routing_key, _FLAGS.pack(flags) + b"".join(filter(None, places)))


def _set_number(places: list[bytes | None], name: str, value: bytes) -> None:
    if not value.isdigit() or len(value) > _NUMBER_DIGITS_MAX:
        return
    number = int(value)
    if name == TTL_HEADER:
        places[_EXPIRATION] = short(str(number))
    elif name == PRIORITY_HEADER:
        places[_PRIORITY] = bytes((min(number, PRIORITY_MAX),))
    elif name == TIMESTAMP_HEADER:
        places[_TIMESTAMP] = _TIME.pack(number)
    elif number in (1, 2):
        places[_DELIVERY_MODE] = bytes((number,))


_NUMBERS = frozenset((TTL_HEADER, PRIORITY_HEADER, TIMESTAMP_HEADER, DELIVERY_MODE_HEADER))


def _field(name: str, value: bytes) -> bytes:
    """A field of a table: text where it is that, else bytes."""
    key = name.encode("utf-8", "replace")
    if len(key) > 255:
        return b""
    return bytes((len(key),)) + key + (b"S" if _is_text(value) else b"x") + _LENGTH.pack(len(value)) + value


def _is_text(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
