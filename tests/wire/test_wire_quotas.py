"""Quotas on the wire: who is above a limit is told to wait and is not read from; others do not notice."""

import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.chaos.kafka_wire import (
    CLIENT_ID,
    WireClient,
    batch_of,
    produce_frame,
    read_response,
    request_frame,
)
from tidelog.server.process import BrokerThread

ALTER_CLIENT_QUOTAS = "alter_client_quotas"


def set_limit(client: WireClient, value: float | None, key: str = "producer_byte_rate") -> None:
    name = CLIENT_ID.decode()
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    entity = [{"entity_type": "client-id", "entity_name": name}]
    fields = {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}
    # Whoever sets it is somebody else: who is above a limit would have to wait with this too.
    frame = request_frame(ALTER_CLIENT_QUOTAS, 1, 7, fields)
    client.send(frame.replace(CLIENT_ID, b"z" * len(CLIENT_ID), 1))
    answer = read_response(ALTER_CLIENT_QUOTAS, 1, client.receive())
    assert not int(answer.entries[0].error_code)


@pytest.fixture
def limited(broker: BrokerThread) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as connection:
        yield connection
        with WireClient(broker.bootstrap) as other:
            for key in ("producer_byte_rate", "request_percentage"):
                set_limit(other, None, key)


def correlation_id(answer: bytes) -> int:
    return int(struct.unpack_from(">i", answer)[0])


def test_requests_that_came_together_are_served_when_their_time_has_come(
    limited: WireClient, topic: str
) -> None:
    set_limit(limited, 20_000.0)
    # The windows hold 200,000 bytes at once; each frame after the third costs another four seconds' worth.
    frames = [
        produce_frame(topic, 0, batch_of(b"x" * 70_000), correlation_id=number) for number in range(1, 5)
    ]
    begun = time.monotonic()
    limited.send(b"".join(frames))
    times = []
    for number in range(1, 5):
        assert correlation_id(limited.receive()) == number
        times.append(time.monotonic() - begun)
    # The third is above the limit by 10,000 bytes, which takes half a second, and the fourth waits for it.
    assert times[2] < 0.4, times
    assert times[3] > 0.4, times
    assert limited.fetch(topic, 0, 0).high_watermark == 4


def test_the_others_are_served_meanwhile(broker: BrokerThread, limited: WireClient, topic: str) -> None:
    set_limit(limited, 1.0, "request_percentage")
    with WireClient(broker.bootstrap) as other:
        for number in range(200):
            limited.send(produce_frame(topic, 0, batch_of(b"x"), correlation_id=number))
        renamed = produce_frame(topic, 1, batch_of(b"y"))
        assert renamed.count(CLIENT_ID) == 1
        other.send(renamed.replace(CLIENT_ID, b"z" * len(CLIENT_ID)))
        begun = time.monotonic()
        other.receive()
        assert time.monotonic() - begun < 1.0
        for number in range(200):
            assert correlation_id(limited.receive()) == number


def test_a_new_connection_does_not_get_more(broker: BrokerThread, limited: WireClient, topic: str) -> None:
    """Those who share a limit share the wait: the request of the third is held, not served."""
    set_limit(limited, 20_000.0)
    frame = produce_frame(topic, 0, batch_of(b"x" * 110_000))
    # The windows hold 200,000 bytes: the second goes over by a second's worth.
    with WireClient(broker.bootstrap) as second, WireClient(broker.bootstrap) as third:
        for connection in (limited, second):
            connection.send(frame)
            connection.receive()
        begun = time.monotonic()
        third.send(frame)
        third.receive()
        assert time.monotonic() - begun > 0.8
        # Who goes away while its request is held leaves nothing behind.
        with WireClient(broker.bootstrap) as fourth:
            fourth.send(frame)
    assert limited.fetch(topic, 0, 0).high_watermark == 3


def timed(client: WireClient, frame: bytes) -> float:
    """How long a request takes."""
    client.send(frame)
    begun = time.monotonic()
    client.receive()
    return time.monotonic() - begun


def test_time_is_shared_by_connections(broker: BrokerThread, limited: WireClient) -> None:
    """One percent of the broker is one percent, over one connection or over many new ones."""
    fields = {
        "topics": [{"topic_id": None, "name": f"nothing-{number}"} for number in range(3_000)],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    frame = request_frame("metadata", 12, 7, fields)
    # The shortest of some: others may keep the machine busy, which the broker does not count.
    each_seconds = min(timed(limited, frame) for _ in range(7))
    set_limit(limited, 1.0, "request_percentage")
    answers, begun = 0, time.monotonic()
    while time.monotonic() - begun < 2.0:
        with WireClient(broker.bootstrap, timeout_seconds=0.5) as connection, suppress(TimeoutError):
            connection.send(frame)
            connection.receive()
            answers += 1
    # Ten seconds' worth at once, then what two seconds give, and the one that goes over.
    assert answers <= 0.12 / each_seconds + 2, (answers, each_seconds)
