"""A message of MQTT as a Kafka record, and back.

The value is the payload. Headers, besides those of the user properties:

    mqtt-topic              the MQTT topic, where the key does not say it
    mqtt-qos                0, 1 or 2; without it (other Kafka clients) the subscription decides
    mqtt-retain             1 where the publisher asked for it
    mqtt-client             who published, for subscriptions with No Local
    mqtt-expires-at         milliseconds since 1970
    mqtt-content-type, mqtt-response-topic, mqtt-correlation-data, mqtt-payload-format

Names that begin with `mqtt-` are the gateway's: user properties of such names are not passed on, in either
direction. Every other header of a record is a user property for the subscribers of version 5.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidelog.gateways.mqtt.mapping import Rule
from tidelog.gateways.mqtt.packets import Publish
from tidelog.gateways.mqtt.primitives import TEXT_BYTES_MAX
from tidelog.gateways.mqtt.properties import USER_PROPERTIES_MAX, Property

OWN_PREFIX = "mqtt-"
TOPIC, QOS, RETAIN, CLIENT, EXPIRES_AT = (
    OWN_PREFIX + name for name in ("topic", "qos", "retain", "client", "expires-at")
)
_TEXTS = {
    OWN_PREFIX + "content-type": Property.CONTENT_TYPE,
    OWN_PREFIX + "response-topic": Property.RESPONSE_TOPIC,
}
_CORRELATION = OWN_PREFIX + "correlation-data"
_FORMAT = OWN_PREFIX + "payload-format"
_QOS_TEXTS = {b"0": 0, b"1": 1, b"2": 2}

Headers = list[tuple[str, str | bytes | None]]


class Origin(NamedTuple):
    """Where the record of a message is."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class Message:
    """What subscribers get."""

    topic: str
    payload: bytes
    qos: int = 2
    retain: bool = False
    #: of MQTT 5, those that travel with a message
    properties: Mapping[int, Any] = field(default_factory=dict)
    client_id: str = ""
    expires_at_ms: int = 0


class Outgoing(NamedTuple):
    """A record to be written."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers


def from_packet(packet: Publish, topic: str, client_id: str, now_ms: int) -> Message:
    """A message that a client publishes; the topic is that of the alias where it used one."""
    found = packet.properties
    expires = 0
    properties: Mapping[int, Any] = {}
    if found:
        kept = dict(found)
        kept.pop(Property.TOPIC_ALIAS, None)
        seconds = kept.pop(Property.MESSAGE_EXPIRY, None)
        if seconds is not None:
            expires = now_ms + seconds * 1000
        properties = kept
    return Message(topic, packet.payload, packet.qos, packet.retain, properties, client_id, expires)


def _headers(message: Message) -> Headers:
    headers: Headers = [(QOS, b"%d" % message.qos), (CLIENT, message.client_id.encode())]
    if message.retain:
        headers.append((RETAIN, b"1"))
    if message.expires_at_ms:
        headers.append((EXPIRES_AT, b"%d" % message.expires_at_ms))
    properties = message.properties
    if properties:
        for name, identifier in _TEXTS.items():
            if identifier in properties:
                headers.append((name, properties[identifier].encode()))
        if Property.CORRELATION_DATA in properties:
            headers.append((_CORRELATION, properties[Property.CORRELATION_DATA]))
        if Property.PAYLOAD_FORMAT in properties:
            headers.append((_FORMAT, b"%d" % properties[Property.PAYLOAD_FORMAT]))
        for name, value in properties.get(Property.USER_PROPERTY, ()):
            # Kafka's headers have a name; an empty one would be refused by some clients.
            if name and not name.startswith(OWN_PREFIX):
                headers.append((name, value.encode()))
    return headers


def to_record(message: Message, rule: Rule) -> Outgoing:
    """The record in the topic of the rule."""
    headers = _headers(message)
    if not rule.keeps_topic:
        headers.insert(0, (TOPIC, message.topic.encode()))
    return Outgoing(rule.topic, rule.key_of(message.topic).encode(), message.payload, headers)


def to_retained(message: Message, topic: str) -> Outgoing:
    """The record in the topic of retained messages; an empty payload takes the message away."""
    key = message.topic.encode()
    if not message.payload:
        return Outgoing(topic, key, None, [])
    return Outgoing(topic, key, message.payload, _headers(message))


def from_record(
    topic: str | None, value: bytes | None, headers: Iterable[tuple[str, Any]] | None
) -> Message | None:
    """A record as a message; `topic` is what the key says. None where no MQTT topic is known."""
    message = Message(topic or "", value or b"")
    if headers:
        _read_headers(message, headers)
    return message if message.topic else None


def _read_headers(message: Message, headers: Iterable[tuple[str, Any]]) -> None:
    properties: dict[int, Any] = {}
    pairs: list[tuple[str, str]] = []
    for name, raw in headers:
        value = raw or b""
        if name[:5] != OWN_PREFIX:
            _add_pair(pairs, name, value)
        elif name == QOS:
            message.qos = _QOS_TEXTS.get(value, 2)
        elif name == CLIENT:
            message.client_id = value.decode(errors="replace")
        elif name == TOPIC:
            message.topic = _topic_text(value)
        elif name == RETAIN:
            message.retain = value == b"1"
        elif name == EXPIRES_AT:
            message.expires_at_ms = int(value) if value.isdigit() and len(value) < 16 else 0
        elif name == _CORRELATION:
            if len(value) <= TEXT_BYTES_MAX:
                properties[Property.CORRELATION_DATA] = value
        elif name == _FORMAT:
            properties[Property.PAYLOAD_FORMAT] = int(value == b"1")
        elif name in _TEXTS and (text := _text(value)) is not None:
            properties[_TEXTS[name]] = text
    if pairs:
        properties[Property.USER_PROPERTY] = pairs
    if properties:
        message.properties = properties


def _text(value: bytes) -> str | None:
    """A string as MQTT allows it."""
    if len(value) > TEXT_BYTES_MAX or b"\0" in value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _topic_text(value: bytes) -> str:
    text = _text(value)
    return "" if text is None or "+" in text or "#" in text else text


def _add_pair(pairs: list[tuple[str, str]], name: str, value: bytes) -> None:
    text = _text(value)
    fits = text is not None and _text(name.encode(errors="replace")) is not None
    if text is not None and fits and len(pairs) < USER_PROPERTIES_MAX:
        pairs.append((name, text))
