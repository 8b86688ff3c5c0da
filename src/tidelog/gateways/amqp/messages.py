"""AMQP messages as records and back.

    body                     the value
    header tidelog-key       the key (none otherwise)
    exchange, routing key    headers amqp.exchange, amqp.routing-key
    properties               headers amqp.content-type, amqp.correlation-id, … as text
    expiration, priority     headers tidelog-ttl-ms, tidelog-priority, which share groups know
    headers                  text as headers of their own names; everything else, and names that begin with
                             amqp. or tidelog-, in one header amqp.headers, an AMQP table

So what a worker sends is readable for every Kafka client, and comes out of the gateway as it went in. What a
Kafka client wrote comes out with its headers as text where they are UTF-8, else as bytes, without properties.
"""

import datetime
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pamqp import commands, decode, encode

from tidelog.records.record import Record

KEY_HEADER = "tidelog-key"
TTL_HEADER = "tidelog-ttl-ms"
PRIORITY_HEADER = "tidelog-priority"
EXCHANGE_HEADER = "amqp.exchange"
ROUTING_KEY_HEADER = "amqp.routing-key"
TABLE_HEADER = "amqp.headers"
#: deliveries of earlier copies of the message (see `queue_reader`)
DELIVERIES_HEADER = "amqp.deliveries"
_RESERVED = ("amqp.", "tidelog-")
_TEXT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "message_type",
    "user_id",
    "app_id",
)
_HEADER_OF = {name: "amqp." + name.replace("_", "-") for name in _TEXT_PROPERTIES}
_PROPERTY_OF = {header: name for name, header in _HEADER_OF.items()}
TIMESTAMP_HEADER = "amqp.timestamp"
DELIVERY_MODE_HEADER = "amqp.delivery-mode"
PRIORITY_MAX = 255
#: larger tables are never published, and long ones take long to read
TABLE_BYTES_MAX = 32 << 10
TTL_MS_MAX = 2**31 - 1

Properties = commands.Basic.Properties
_Headers = tuple[tuple[str, bytes | None], ...]


class BadMessage(ValueError):
    """Properties that mean nothing."""


@dataclass(slots=True)
class Message:
    """What is published, and what is delivered."""

    exchange: str
    routing_key: str
    properties: Properties
    body: bytes

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.properties.headers or {}


def to_record(message: Message, now_ms: int, deliveries: int = 0) -> Record:
    """The record of a message; raises BadMessage."""
    properties = message.properties
    headers: list[tuple[str, bytes | None]] = []
    if message.exchange:
        headers.append((EXCHANGE_HEADER, message.exchange.encode()))
    headers.append((ROUTING_KEY_HEADER, message.routing_key.encode()))
    for name in _TEXT_PROPERTIES:
        value = getattr(properties, name)
        if value:
            headers.append((_HEADER_OF[name], value.encode("utf-8", "surrogateescape")))
    if properties.timestamp is not None:
        headers.append((TIMESTAMP_HEADER, b"%d" % int(properties.timestamp.timestamp())))
    if properties.delivery_mode is not None:
        headers.append((DELIVERY_MODE_HEADER, b"%d" % properties.delivery_mode))
    if properties.expiration:
        headers.append((TTL_HEADER, b"%d" % ttl_ms(properties.expiration)))
    if properties.priority is not None:
        headers.append((PRIORITY_HEADER, b"%d" % properties.priority))
    if deliveries:
        headers.append((DELIVERIES_HEADER, b"%d" % deliveries))
    key: bytes | None = None
    table: dict[str, Any] = {}
    for name, value in (properties.headers or {}).items():
        if name == KEY_HEADER and isinstance(value, str):
            key = value.encode()
        elif isinstance(value, str) and not name.startswith(_RESERVED):
            headers.append((name, value.encode("utf-8", "surrogateescape")))
        else:
            table[name] = value
    if table:
        try:
            headers.append((TABLE_HEADER, encode.field_table(table)))
        except (TypeError, ValueError, OverflowError) as fault:
            raise BadMessage(f"the headers cannot be written: {fault}") from fault
    return Record(0, now_ms, key, message.body, tuple(headers))


def ttl_ms(expiration: str) -> int:
    """The expiration property as milliseconds."""
    if not expiration.isascii() or not expiration.isdigit() or int(expiration) > TTL_MS_MAX:
        raise BadMessage(f"expiration is a number of milliseconds, not {expiration[:20]!r}")
    return int(expiration)


def from_record(record: Record, topic: str) -> Message:
    """The message of a record, whoever wrote it: one of a Kafka client has the topic as its routing key."""
    exchange, routing_key = "", topic
    properties = Properties()
    headers: dict[str, Any] = {}
    for name, raw in record.headers:
        value = b"" if raw is None else raw
        if name in _PROPERTY_OF:
            setattr(properties, _PROPERTY_OF[name], value.decode("utf-8", "replace")[:255] or None)
        elif name == EXCHANGE_HEADER:
            exchange = value.decode("utf-8", "replace")
        elif name == ROUTING_KEY_HEADER:
            routing_key = value.decode("utf-8", "replace")
        elif name == TABLE_HEADER:
            headers.update(_table(value))
        elif name in (TTL_HEADER, PRIORITY_HEADER, TIMESTAMP_HEADER, DELIVERY_MODE_HEADER):
            _set_number(properties, name, value)
        elif name != DELIVERIES_HEADER:
            headers[name] = _text_or_bytes(value)
    if record.key is not None:
        headers[KEY_HEADER] = _text_or_bytes(record.key)
    if headers:
        properties.headers = headers
    return Message(exchange, routing_key, properties, bytes(record.value or b""))


def _set_number(properties: Properties, name: str, value: bytes) -> None:
    if not value.isdigit() or len(value) > 12:
        return
    number = int(value)
    if name == TTL_HEADER:
        properties.expiration = str(number)
    elif name == PRIORITY_HEADER:
        properties.priority = min(number, PRIORITY_MAX)
    elif name == DELIVERY_MODE_HEADER:
        properties.delivery_mode = number if number in (1, 2) else None
    else:
        properties.timestamp = datetime.datetime.fromtimestamp(number, tz=datetime.UTC)


def _table(value: bytes) -> Mapping[str, Any]:
    return decode.field_table(value)[1] if whole_table(value) else {TABLE_HEADER: _text_or_bytes(value)}


def whole_table(value: bytes) -> bool:
    """Whether the bytes are an AMQP table and nothing else: other clients may write the header, too."""
    if len(value) > TABLE_BYTES_MAX:
        return False
    try:
        return decode.field_table(value)[0] == len(value)
    except (ValueError, KeyError, IndexError, OverflowError, OSError, RecursionError, struct.error):
        return False


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return bytes(value)


def header(record: Record, name: str) -> bytes | None:
    for key, value in record.headers:
        if key == name:
            return value
    return None


def number_header(record: Record, name: str) -> int | None:
    value = header(record, name)
    return int(value) if value is not None and value.isdigit() and len(value) < 16 else None


def expires_at_ms(record: Record, queue_ttl_ms: int | None) -> int | None:
    """When a record is over: the sooner of its own time and that of its queue."""
    own = number_header(record, TTL_HEADER)
    limits = [ttl for ttl in (own, queue_ttl_ms) if ttl is not None]
    return record.timestamp_ms + min(limits) if limits else None
