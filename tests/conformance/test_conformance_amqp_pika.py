"""The AMQP gateway with pika, before a broker of ours."""

import logging
import os
import random
import socket
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pika
import pytest
from confluent_kafka import Consumer, Producer
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError

from tests.chaos.hostile_gateway_clients import attack_amqp
from tests.support.amqp_gateway import RunningGateway
from tidelog.testing.broker import RunningBroker

PATIENCE_SECONDS = 30.0
HOSTILE_CLIENTS = int(os.environ.get("TIDELOG_AMQP_HOSTILE_CLIENTS", "60"))
pytestmark = pytest.mark.xdist_group("amqp")


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(broker: RunningBroker) -> Iterator[RunningGateway]:
    with RunningGateway(broker.bootstrap) as running:
        yield running


def connected(gateway: RunningGateway) -> pika.BlockingConnection:
    parameters = pika.ConnectionParameters("127.0.0.1", gateway.port, blocked_connection_timeout=30)
    return pika.BlockingConnection(parameters)


@pytest.fixture
def channel(gateway: RunningGateway) -> Iterator[BlockingChannel]:
    connection = connected(gateway)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def new_name(what: str) -> str:
    return f"{what}-{uuid4().hex[:8]}"


def declared(channel: BlockingChannel, **arguments: Any) -> str:
    name = new_name("queue")
    channel.queue_declare(name, arguments={key.replace("_", "-"): value for key, value in arguments.items()})
    return name


def publish(channel: BlockingChannel, queue: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), pika.BasicProperties(**properties), mandatory=True)


def taken(channel: BlockingChannel, queue: str, count: int) -> list[Any]:
    """Deliveries that are not acknowledged yet."""
    found: list[Any] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < until:
        for delivery in channel.consume(queue, inactivity_timeout=0.2):
            if delivery[0] is None:
                break
            found.append(delivery)
            if len(found) == count:
                break
    return found


def got(channel: BlockingChannel, queue: str) -> list[str]:
    """Everything that is there, by basic.get."""
    bodies = []
    while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(answer[2].decode())
    return bodies


def test_published_is_confirmed_and_consumed_in_order(channel: BlockingChannel) -> None:
    queue = declared(channel)
    bodies = [str(number) for number in range(100)]
    publish(channel, queue, *bodies, content_type="text/plain", headers={"a": 1, "b": "x"}, priority=3)
    assert channel.queue_declare(queue, passive=True).method.message_count == 100
    found = taken(channel, queue, 100)
    assert [body.decode() for _, _, body in found] == bodies
    method, properties, _ = found[0]
    assert (method.exchange, method.routing_key, method.redelivered) == ("", queue, False)
    assert (properties.content_type, properties.headers) == ("text/plain", {"a": 1, "b": "x"})
    channel.basic_ack(found[-1][0].delivery_tag, multiple=True)
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    assert channel.queue_delete(queue).method.message_count == 0


def test_exchanges_of_every_type(channel: BlockingChannel) -> None:
    routes: list[tuple[str, str, dict[str, Any]]] = [
        ("direct", "key", {}),
        ("fanout", "", {}),
        ("topic", "*.key.#", {}),
        ("headers", "", {"x-match": "any", "color": "red"}),
    ]
    for kind, routing_key, arguments in routes:
        exchange, queue = new_name(kind), declared(channel)
        channel.exchange_declare(exchange, kind)
        channel.exchange_declare(exchange, passive=True)
        channel.queue_bind(queue, exchange, routing_key, arguments)
        properties = pika.BasicProperties(headers={"color": "red"})
        key = "a.key.b" if kind == "topic" else "key"
        channel.basic_publish(exchange, key, kind.encode(), properties, mandatory=True)
        if kind != "fanout":
            with pytest.raises(UnroutableError):
                channel.basic_publish(exchange, "other", b"lost", mandatory=True)
        assert got(channel, queue) == [kind]
        channel.queue_unbind(queue, exchange, routing_key, arguments)
        with pytest.raises(UnroutableError):
            channel.basic_publish(exchange, key, b"lost", properties, mandatory=True)
        channel.exchange_delete(exchange)


def test_requeued_comes_again_and_says_so(channel: BlockingChannel) -> None:
    queue = declared(channel)
    publish(channel, queue, "one")
    [(method, _, _)] = taken(channel, queue, 1)
    assert not method.redelivered
    for again in range(1, 14):  # more often than a share group delivers a record
        channel.basic_nack(method.delivery_tag, requeue=True)
        [(method, properties, body)] = taken(channel, queue, 1)
        assert (method.redelivered, body) == (True, b"one")
        assert properties.headers["x-delivery-count"] == again
    channel.basic_ack(method.delivery_tag)
    channel.cancel()
    assert got(channel, queue) == []


def test_prefetch_is_how_many_are_out(channel: BlockingChannel) -> None:
    queue = declared(channel)
    publish(channel, queue, *"abcdef")
    found: list[Any] = []
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, lambda _, method, __, body: found.append((method.delivery_tag, body)))
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < 2 and time.monotonic() < until:
        channel.connection.process_data_events(0.1)
    channel.connection.process_data_events(0.5)
    assert [body for _, body in found] == [b"a", b"b"]
    channel.basic_ack(found[0][0])
    while len(found) < 3 and time.monotonic() < until:
        channel.connection.process_data_events(0.1)
    assert [body for _, body in found] == [b"a", b"b", b"c"]


def test_what_a_lost_connection_held_is_anothers(gateway: RunningGateway, channel: BlockingChannel) -> None:
    queue = declared(channel)
    publish(channel, queue, "one", "two")
    other = connected(gateway)
    assert len(taken(other.channel(), queue, 2)) == 2
    other._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # no goodbye
    found = taken(channel, queue, 2)
    assert sorted(body for _, _, body in found) == [b"one", b"two"]
    assert all(method.redelivered for method, _, _ in found)


def test_rejected_goes_to_the_dead_letter_exchange(channel: BlockingChannel) -> None:
    exchange, letters = new_name("dlx"), declared(channel)
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(letters, exchange, "dead")
    queue = new_name("queue")
    arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "dead"}
    channel.queue_declare(queue, arguments=arguments)
    publish(channel, queue, "rejected", headers={"a": 1})
    publish(channel, queue, "expired", expiration="1")
    [(method, _, body)] = taken(channel, queue, 1)
    assert body == b"rejected"
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.cancel()
    found = sorted(taken(channel, letters, 2), key=lambda each: each[2])
    assert [body for _, _, body in found] == [b"expired", b"rejected"]
    death = found[1][1].headers["x-death"][0]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", queue, 1)
    assert found[1][1].headers["a"] == 1 and found[1][0].routing_key == "dead"
    assert found[0][1].headers["x-first-death-reason"] == "expired"
    assert found[0][1].expiration is None


def test_a_queue_without_consumers_delays(channel: BlockingChannel) -> None:
    target = declared(channel)
    waiting = declared(
        channel, x_message_ttl=1_000, x_dead_letter_exchange="", x_dead_letter_routing_key=target
    )
    sent_at = time.monotonic()
    publish(channel, waiting, "one", "two")
    publish(channel, waiting, "now", expiration="0")  # behind the others
    found = taken(channel, target, 3)
    assert time.monotonic() - sent_at >= 0.9
    assert [body for _, _, body in found] == [b"one", b"two", b"now"]
    assert not any(method.redelivered for method, _, _ in found)
    assert channel.queue_declare(waiting, passive=True).method.message_count == 0


def test_priorities(channel: BlockingChannel) -> None:
    queue = declared(channel, x_max_priority=9)
    for number in range(10):
        publish(channel, queue, str(number), priority=number)
    channel.basic_qos(prefetch_count=1)
    seen = []
    for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE_SECONDS):
        seen.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(seen) == 10:
            break
    assert seen == sorted(seen, reverse=True)


def test_queues_of_one_connection(gateway: RunningGateway, channel: BlockingChannel) -> None:
    other = connected(gateway)
    theirs = other.channel()
    exclusive = theirs.queue_declare("", exclusive=True).method.queue
    publish(channel, exclusive, "hello")  # anybody may write to it
    with connected(gateway) as another, pytest.raises(ChannelClosedByBroker) as refused:
        another.channel().queue_declare(exclusive, passive=True)
    assert refused.value.reply_code == 405
    leaving = new_name("auto")
    theirs.queue_declare(leaving, auto_delete=True)
    theirs.basic_consume(leaving, lambda *_: None)
    theirs.close()
    other.close()
    until = time.monotonic() + PATIENCE_SECONDS
    for name in (exclusive, leaving):
        while time.monotonic() < until:
            with connected(gateway) as another:
                try:
                    another.channel().queue_declare(name, passive=True)
                except ChannelClosedByBroker as fault:
                    assert fault.reply_code == 404
                    break
            time.sleep(0.1)
        else:
            pytest.fail(f"{name} is still there")


def test_purge_and_the_topic_behind(broker: RunningBroker, channel: BlockingChannel) -> None:
    queue = declared(channel)
    publish(channel, queue, *"abc")
    assert channel.queue_purge(queue).method.message_count == 3
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(queue, b"from kafka", key=b"k", headers={"h": b"v"})
    assert producer.flush(PATIENCE_SECONDS) == 0
    [(_, properties, body)] = taken(channel, queue, 1)
    assert (body, properties.headers) == (b"from kafka", {"h": "v", "tidelog-key": "k"})
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "all", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([queue])
    values: list[bytes] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(values) < 4 and time.monotonic() < until:
        values += [message.value() or b"" for message in consumer.consume(10, 0.5)]
    consumer.close()
    assert values == [b"a", b"b", b"c", b"from kafka"]


def test_two_gateways_share_what_is_declared_and_delivered(
    broker: RunningBroker, gateway: RunningGateway, channel: BlockingChannel
) -> None:
    queue = declared(channel)
    with RunningGateway(broker.bootstrap) as second:
        other = connected(second)
        theirs = other.channel()
        theirs.queue_declare(queue, passive=True)
        publish(channel, queue, *map(str, range(50)))
        seen: list[bytes] = []
        until = time.monotonic() + PATIENCE_SECONDS

        def see(taker: Any, method: Any, _: Any, body: bytes) -> None:
            seen.append(body)
            taker.basic_ack(method.delivery_tag)

        for each in (channel, theirs):
            each.basic_qos(prefetch_count=5)
            each.basic_consume(queue, see)
        while len(seen) < 50 and time.monotonic() < until:
            for each in (channel, theirs):
                each.connection.process_data_events(0.05)
        other.close()
    assert sorted(seen, key=int) == [b"%d" % number for number in range(50)]


def test_hostile_clients_harm_nobody_else(
    gateway: RunningGateway, channel: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    queue = declared(channel)
    choices = random.Random(5)
    assert gateway.gateway is not None
    before = gateway.gateway.metrics.connections_opened
    connections = gateway.gateway.connections
    for _ in range(HOSTILE_CLIENTS):
        attack_amqp(gateway.port, choices, queue)
    assert gateway.gateway.metrics.connections_opened - before > HOSTILE_CLIENTS // 3
    until = time.monotonic() + PATIENCE_SECONDS
    while gateway.gateway.connections > connections and time.monotonic() < until:
        channel.connection.process_data_events(0.1)
    assert gateway.gateway.connections <= connections
    channel.queue_purge(queue)
    publish(channel, queue, "still here")
    assert got(channel, queue) == ["still here"]
    assert [row.getMessage() for row in caplog.records if row.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        (404, lambda channel: channel.queue_declare("never-made", passive=True)),
        (404, lambda channel: channel.basic_consume("never-made", print)),
        (404, lambda channel: channel.exchange_declare("never-made", passive=True)),
        (406, lambda channel: channel.exchange_declare("amq.topic", "fanout")),
        (403, lambda channel: channel.exchange_declare("amq.new", "fanout")),
        (403, lambda channel: channel.exchange_delete("amq.topic")),
        (540, lambda channel: channel.queue_declare("q", arguments={"x-max-length": 1})),
        (406, lambda channel: channel.queue_declare("q", arguments={"x-message-ttl": "soon"})),
        (406, lambda channel: channel.basic_ack(99) or channel.queue_declare("", exclusive=True)),
        (406, lambda channel: channel.basic_publish("", "q", b"x" * 1_000_001)),
    ],
)
def test_channels_are_closed_with_rabbitmqs_codes(
    gateway: RunningGateway, channel: BlockingChannel, code: int, wrong: Any
) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        wrong(channel)
    assert refused.value.reply_code == code
    assert channel.connection.channel().is_open


def test_other_virtual_hosts_and_types_end_the_connection(gateway: RunningGateway) -> None:
    with pytest.raises(ConnectionClosedByBroker):
        connected(gateway).channel().exchange_declare("x", "x-delayed-message")
    parameters = pika.ConnectionParameters("127.0.0.1", gateway.port, virtual_host="other")
    with pytest.raises(Exception) as refused:
        pika.BlockingConnection(parameters)
    assert not isinstance(refused.value, NackError)
