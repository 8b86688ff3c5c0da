"""One topic, three ways in and three ways out: MQTT, AMQP (as Celery's workers speak it) and Kafka."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker
from tests.support.both_gateways import Doors, both_gateways

pytestmark = [pytest.mark.xdist_group("amqp"), pytest.mark.timeout(180)]


@pytest.fixture
def topic(make_topic: TopicMaker) -> str:
    return make_topic(partitions=1)


@pytest.fixture
def doors(oracle: bool, bootstrap: str, topic: str, tmp_path: Path) -> Iterator[Doors]:
    if oracle:
        pytest.skip("share groups of a Kafka that may not have them")
    with both_gateways(bootstrap, tmp_path, topic) as opened:
        yield opened


def read(bootstrap: str, topic: str, count: int) -> list[tuple[bytes, bytes, bytes]]:
    """Key, value and the header `color` of so many records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[tuple[bytes, bytes, bytes]] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            headers: Any = dict(message.headers() or [])
            found.append((message.key() or b"", message.value() or b"", headers.get("color", b"")))
    consumer.close()
    return found


def test_what_comes_in_by_one_door_goes_out_by_all(doors: Doors, bootstrap: str, topic: str) -> None:
    """Key, value and a header, whoever writes and whoever reads."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    properties: Any = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("color", "green")]
    with doors.device() as device:
        device.subscribe("sensors/+", qos=1)
        device.publish("sensors/7", b"by MQTT", 1, properties=properties)
        device.expect(1)
        doors.send(b"by AMQP", {"tidelog-key": "8", "color": "red"})
        device.expect(2)
        producer.produce(topic, b"by Kafka", b"9", headers=[("color", b"blue")])
        assert producer.flush(DEADLINE_SECONDS) == 0
        device.expect(3)
        messages: Any = device.messages
        seen = [
            (each.topic, bytes(each.payload), dict(each.properties.UserProperty)["color"])
            for each in messages
        ]
    assert seen == [
        ("sensors/7", b"by MQTT", "green"),
        ("sensors/8", b"by AMQP", "red"),
        ("sensors/9", b"by Kafka", "blue"),
    ]
    assert read(bootstrap, topic, 3) == [
        (b"7", b"by MQTT", b"green"),
        (b"8", b"by AMQP", b"red"),
        (b"9", b"by Kafka", b"blue"),
    ]
    taken = doors.take(3)
    assert [(each.body, each.headers["color"]) for each in taken] == [
        (b"by MQTT", "green"),
        (b"by AMQP", "red"),
        (b"by Kafka", "blue"),
    ]
