"""The MQTT gateway with paho-mqtt, in both versions, against a real broker; each test has its own topics."""

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conformance.drivers.contract import TopicMaker, new_name
from tests.support.mqtt_client import SECONDS_MAX, V5, V311, MqttClient
from tests.support.mqtt_process import MqttProcess

pytestmark = pytest.mark.xdist_group("mqtt")


@pytest.fixture(scope="module")
def gateway(bootstrap: str) -> Iterator[MqttProcess]:
    with MqttProcess(bootstrap, options=("--topic", new_name("mqtt")), name=new_name("gateway")) as running:
        yield running


@pytest.fixture(params=[V311, V5], ids=["v3.1.1", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_every_quality_of_service_arrives_in_order(gateway: MqttProcess, version: int) -> None:
    root = new_name("a")
    with MqttClient(gateway.port, version=version) as client:
        assert client.subscribe(f"{root}/#", f"{root}/+/x", qos=2) == [2, 2]
        for qos in (0, 1, 2):
            for number in range(5):
                client.publish(f"{root}/{qos}", b"%d" % number, qos)
        client.expect(15)
        for qos in (0, 1, 2):
            of_one = [m for m in client.messages if m.topic == f"{root}/{qos}"]
            assert [m.payload for m in of_one] == [b"0", b"1", b"2", b"3", b"4"]
            assert {m.qos for m in of_one} == {qos} and not any(m.retain for m in of_one)
        client.expect_no_more(15, 0.2)


def test_a_retained_message_greets_who_comes_later(gateway: MqttProcess, version: int) -> None:
    root = new_name("retained")
    with MqttClient(gateway.port, version=version) as client:
        client.publish(f"{root}/a", b"old", 1, retain=True)
        client.publish(f"{root}/a", b"new", 1, retain=True)
        client.publish(f"{root}/b", b"gone", 1, retain=True)
        client.publish(f"{root}/b", b"", 1, retain=True)
    with MqttClient(gateway.port, version=version) as late:
        late.subscribe(f"{root}/+", qos=1)
        assert late.expect(1) == [(f"{root}/a", b"new")]
        assert late.messages[0].retain
        late.expect_no_more(1, 0.3)


def test_a_session_that_lasts_gets_what_it_missed(gateway: MqttProcess, version: int) -> None:
    root, name = new_name("lasting"), new_name("client")
    again = {"version": version, "clean": False, "expiry_seconds": 600}
    with MqttClient(gateway.port, name, **again) as client:  # type: ignore[arg-type]
        assert client.present is False
        client.subscribe(f"{root}/#", qos=2)
    with MqttClient(gateway.port, version=version) as other:
        for number in range(20):
            other.publish(f"{root}/x", b"%d" % number, number % 3)
    missed = {qos: [b"%d" % number for number in range(20) if number % 3 == qos] for qos in (1, 2)}
    count = len(missed[1]) + len(missed[2])
    with MqttClient(gateway.port, name, **again) as client:  # type: ignore[arg-type]
        assert client.present is True
        client.expect(count)
        # paho shows messages of QoS 2 when they are released, which is later.
        for qos, payloads in missed.items():
            assert [m.payload for m in client.messages if m.qos == qos] == payloads
        client.expect_no_more(count, 0.3)


def test_a_session_lives_on_in_a_gateway_that_starts_again(bootstrap: str) -> None:
    version = V311
    root, name = new_name("restarted"), new_name("client")
    again = {"version": version, "clean": False, "expiry_seconds": 600}
    options = ("--topic", new_name("mqtt"))
    with MqttProcess(bootstrap, options=options, name=new_name("gateway")) as running:
        client = MqttClient(running.port, name, **again).connect()  # type: ignore[arg-type]
        client.subscribe(f"{root}/#", qos=1)
        client.drop()
        with MqttClient(running.port, version=version) as other:
            other.publish(f"{root}/before", b"1", 1)
        running.kill()
        running.start()
        with MqttClient(running.port, version=version) as other:
            other.publish(f"{root}/after", b"2", 2)
        with MqttClient(running.port, name, **again) as back:  # type: ignore[arg-type]
            assert back.present is True
            # Two keys may be in two partitions, which know no order.
            assert sorted(back.expect(2)) == [(f"{root}/after", b"2"), (f"{root}/before", b"1")]


def test_the_will_of_a_client_that_vanishes(gateway: MqttProcess, version: int) -> None:
    topic = new_name("will")
    with MqttClient(gateway.port, version=version) as watcher:
        watcher.subscribe(f"{topic}/#", qos=1)
        quiet = MqttClient(
            gateway.port, version=version, prepare=lambda paho: paho.will_set(f"{topic}/quiet", b"no", 1)
        )
        quiet.connect().close()
        lost = MqttClient(
            gateway.port, version=version, prepare=lambda paho: paho.will_set(f"{topic}/lost", b"bye", 1)
        )
        lost.connect().drop()
        assert watcher.expect(1) == [(f"{topic}/lost", b"bye")]
        watcher.expect_no_more(1, 0.3)


def test_a_session_is_taken_over_across_gateways(gateway: MqttProcess, bootstrap: str) -> None:
    version = V5
    name, root = new_name("client"), new_name("moving")
    again = {"version": version, "clean": False, "expiry_seconds": 600}
    topic = gateway._command[gateway._command.index("--topic") + 1]
    with MqttProcess(bootstrap, options=("--topic", topic), name=new_name("other")) as other:
        first = MqttClient(gateway.port, name, **again)  # type: ignore[arg-type]
        first.paho.reconnect_delay_set(60, 60)
        first.connect().subscribe(f"{root}/#", qos=1)
        with MqttClient(other.port, name, **again) as second:  # type: ignore[arg-type]
            assert second.present is True
            first.wait(lambda: first.disconnected is not None, "end of the first connection")
            with MqttClient(gateway.port, version=version) as publisher:
                publisher.publish(f"{root}/x", b"1", 1)
            assert second.expect(1) == [(f"{root}/x", b"1")]
        first.paho.loop_stop()
        other.kill()  # the session is its own still: who wants it must fence it
        with MqttClient(gateway.port, name, **again) as third:  # type: ignore[arg-type]
            assert third.present is True


def test_properties_of_version_5_travel_with_a_message(gateway: MqttProcess) -> None:
    topic = new_name("properties")
    given: Any = Properties(PacketTypes.PUBLISH)
    given.UserProperty = [("color", "green"), ("color", "blue")]
    given.ContentType = "text/plain"
    given.ResponseTopic = "answers/7"
    given.CorrelationData = b"\x00\xff"
    given.MessageExpiryInterval = 60
    with MqttClient(gateway.port, version=V5) as client:
        client.subscribe(topic, qos=1)
        client.publish(topic, b"x", 1, properties=given)
        client.expect(1)
        found: Any = client.messages[0].properties
        assert found is not None
        assert found.UserProperty == [("color", "green"), ("color", "blue")]
        assert (found.ContentType, found.ResponseTopic, found.CorrelationData) == (
            "text/plain",
            "answers/7",
            b"\x00\xff",
        )
        assert 0 < found.MessageExpiryInterval <= 60


def test_kafka_clients_and_mqtt_clients_meet_at_a_topic(gateway: MqttProcess, bootstrap: str) -> None:
    name = new_name("meeting")
    topic = gateway._command[gateway._command.index("--topic") + 1]
    with MqttClient(gateway.port, "sensor", V5) as client:
        client.subscribe(f"{name}/#", qos=1)
        client.publish(f"{name}/a", b"from mqtt", 1)
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, b"from kafka", f"{name}/b".encode(), headers=[("unit", b"C")])
        producer.produce(topic, b"no mqtt topic", b"wild/+")
        assert producer.flush(20) == 0
        assert sorted(client.expect(2)) == [(f"{name}/a", b"from mqtt"), (f"{name}/b", b"from kafka")]
        of_kafka = next(m for m in client.messages if m.payload == b"from kafka")
        properties: Any = of_kafka.properties
        assert properties.UserProperty == [("unit", "C")]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = None
    while found is None:
        record = consumer.poll(20)
        assert record is not None, "the record of the MQTT client is not there"
        if record.value() == b"from mqtt":
            found = record
    consumer.close()
    assert found.key() == f"{name}/a".encode()
    assert ("mqtt-client", b"sensor") in (found.headers() or [])


def test_a_shared_subscription_hands_each_message_to_one(gateway: MqttProcess, version: int) -> None:
    root, name = new_name("shared"), new_name("workers")
    texts = [b"%d" % number for number in range(30)]
    workers = [MqttClient(gateway.port, version=version).connect() for _ in range(2)]
    with MqttClient(gateway.port, version=version) as publisher:
        publisher.publish(f"{root}/a", b"before", 1)
        for worker in workers:
            assert worker.subscribe(f"$share/{name}/{root}/#", qos=1) == [1]
        for text in texts:
            publisher.publish(f"{root}/a", text, 1)
        publisher.publish("elsewhere", b"not covered", 1)

    def came() -> list[bytes]:
        return sorted(bytes(m.payload) for worker in workers for m in worker.messages)

    deadline = time.monotonic() + SECONDS_MAX
    while len(came()) < len(texts) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert came() == sorted(texts)
    workers[0].close()
    with MqttClient(gateway.port, version=version) as publisher:
        publisher.publish(f"{root}/a", b"for the other", 1)
    workers[1].wait(lambda: any(m.payload == b"for the other" for m in workers[1].messages), "the last one")
    workers[1].close()


def test_web_sockets(bootstrap: str) -> None:
    topic = new_name("web")
    options = ("--ws-port", "0", "--metrics-port", "0", "--topic", new_name("mqtt"))
    with MqttProcess(bootstrap, options=options, name=new_name("gateway")) as running:
        with (
            MqttClient(running.ports["ws"], transport="websockets") as web,
            MqttClient(running.port) as plain,
        ):
            web.subscribe(topic, qos=1)
            plain.publish(topic, b"x" * 100_000, 1)
            web.publish(topic, b"y", 2)
            assert sorted(web.expect(2)) == [(topic, b"x" * 100_000), (topic, b"y")]
        with urllib.request.urlopen(f"http://127.0.0.1:{running.ports['http']}/metrics", timeout=10) as page:
            text = page.read().decode()
        assert 'tidelog_mqtt_messages_received_total{qos="1"} 1' in text


def test_what_the_cluster_refuses_holds_up_nothing_else(bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(max_message_bytes="2000")
    with (
        MqttProcess(bootstrap, options=("--topic", topic), name=new_name("gateway")) as running,
        MqttClient(running.port, new_name("client"), V5, clean=False, expiry_seconds=60) as client,
    ):
        client.subscribe("a", qos=2)
        reasons: list[int] = []
        client.paho.on_publish = lambda _, __, ___, reason, ____: reasons.append(int(reason.value))
        for qos in (1, 2):
            client.publish("a", b"x" * 5_000, qos)
            client.publish("a", b"small", qos)
        assert client.expect(2) == [("a", b"small"), ("a", b"small")]
        assert reasons[0] == 0x83 and reasons[1] == 0
        client.expect_no_more(2, 0.2)
