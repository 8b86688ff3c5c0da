"""AMQP messages as records and back."""

import datetime
import random
from typing import Any

import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from tidelog.gateways.amqp.delivered_properties import delivered
from tidelog.gateways.amqp.messages import (
    BadMessage,
    Message,
    expires_at_ms,
    from_record,
    header,
    to_record,
)
from tidelog.records.record import Record

FULL: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "amq.gen-1",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": datetime.datetime(2026, 11, 19, 12, tzinfo=datetime.UTC),
    "message_type": "order",
    "user_id": "alice",
    "app_id": "shop",
    "headers": {
        "task": "add",
        "retries": 3,
        "eta": None,
        "flags": [True, "x", {"deep": 1}],
        "raw": bytearray(b"\xff\x00"),
        "amqp.exchange": "not ours",
        "tidelog-priority": "not ours either",
    },
}


def test_a_message_comes_out_as_it_went_in() -> None:
    message = Message("ex", "a.b", Basic.Properties(**FULL), b"body")
    found = from_record(to_record(message, 1_000), "topic")
    assert (found.exchange, found.routing_key, found.body) == ("ex", "a.b", b"body")
    assert {name: value for name, value in found.properties if value is not None and value != ""} == FULL


def read_back(record: Record, deliveries: int = 1, room: int = 100_000) -> tuple[str, str, Any]:
    exchange, routing_key, written = delivered(record, "topic", deliveries, room)
    content = ContentHeader()
    content.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + written)
    return exchange, routing_key, content.properties


def test_what_is_sent_is_what_is_read() -> None:
    """The quick way from a record to bytes, against the plain one by way of values."""
    choices = random.Random(11)
    full = to_record(Message("ex", "a.b", Basic.Properties(**FULL), b"body"), 1_000)
    names = [name for name, _ in full.headers] + ["other", "amqp.headers", "amqp.deliveries", "ä" * 10]
    values = [b"", b"text", "ü".encode(), b"\xff", b"7", b"9" * 20, b"2", b"\x00\x00\x00\x00", None]
    for number in range(300):
        headers = [row for row in full.headers if choices.random() < 0.7]
        headers += [(choices.choice(names), choices.choice(values)) for _ in range(number % 5)]
        key = choices.choice([None, b"key", b"\xff"])
        seen = {name for name, _ in headers}
        record = Record(0, 0, key, b"", tuple({name: (name, value) for name, value in headers}.values()))
        message = from_record(record, "topic")
        assert len(seen) == len(record.headers)
        assert read_back(record) == (message.exchange, message.routing_key, message.properties)


def test_deliveries_are_counted_and_too_much_is_left_out() -> None:
    record = Record(0, 0, None, b"", (("a", b"x" * 500), ("n" * 300, b""), ("amqp.app-id", b"shop")))
    assert read_back(record, 3)[2].headers == {"a": "x" * 500, "x-delivery-count": 2}
    cut = read_back(record, 3, room=300)[2]
    assert (cut.headers, cut.app_id) == (None, "shop")


def test_readers_of_the_topic_see_text() -> None:
    properties = Basic.Properties(**{**FULL, "headers": {"task": "add", "tidelog-key": "k"}})
    record = to_record(Message("", "orders", properties, b"1"), 1_000)
    assert record.key == b"k" and record.value == b"1" and record.timestamp_ms == 1_000
    assert header(record, "task") == b"add"
    assert header(record, "tidelog-priority") == b"7"
    assert header(record, "tidelog-ttl-ms") == b"60000"
    assert header(record, "amqp.correlation-id") == b"c-1"


def test_a_record_of_a_kafka_client() -> None:
    record = Record(4, 1, b"key", None, (("a", b"text"), ("b", b"\xff"), ("c", None)))
    found = from_record(record, "orders")
    assert (found.exchange, found.routing_key, found.body) == ("", "orders", b"")
    assert found.properties.headers == {"a": "text", "b": b"\xff", "c": "", "tidelog-key": "key"}


@pytest.mark.parametrize("raw", [b"", b"\xff", b"x" * 40, b"\x00\x00\xff\xff", b"\x00\x00\x00\x03\x01aQ"])
@pytest.mark.parametrize(
    "name", ["amqp.headers", "amqp.timestamp", "amqp.delivery-mode", "tidelog-ttl-ms", "tidelog-priority"]
)
def test_headers_that_another_client_wrote_wrongly(name: str, raw: bytes) -> None:
    assert from_record(Record(0, 0, None, b"v", ((name, raw),)), "t").body == b"v"


@pytest.mark.parametrize("expiration", ["-1", "soon", "1.5", "9" * 12, "٣"])
def test_an_expiration_that_is_no_time_is_refused(expiration: str) -> None:
    with pytest.raises(BadMessage, match="expiration"):
        to_record(Message("", "q", Basic.Properties(expiration=expiration), b""), 0)


def test_the_sooner_of_two_times() -> None:
    record = Record(0, 1_000, None, b"", (("tidelog-ttl-ms", b"500"),))
    assert expires_at_ms(record, None) == 1_500
    assert expires_at_ms(record, 100) == 1_100
    assert expires_at_ms(Record(0, 1_000, None, b""), None) is None
