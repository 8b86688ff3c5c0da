"""AMQP messages as records and back."""

import datetime
from typing import Any

import pytest
from pamqp.commands import Basic

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
