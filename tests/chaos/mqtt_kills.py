"""QoS 1 and 2 while gateway and broker are killed: nothing lost, QoS 2 nothing twice.

    python -m tests.chaos.mqtt_kills --seconds 60

A publisher and a subscriber, both of sessions that last and of MQTT as we write it ourselves: what is sent
again, and with which packet identifiers, is under the test's eyes. The publisher numbers its messages and
sends again what was not acknowledged; the subscriber acknowledges everything. Gateway and broker end by
SIGKILL, in turns, while both are at work. At the end each number was received, QoS 1 once or more, QoS 2
once; the Kafka topic has each number of QoS 2 once.
"""

import argparse
import collections
import random
import socket
import sys
import threading
import time

from confluent_kafka import Consumer

from tests.support.mqtt_process import MqttProcess
from tidelog.gateways.mqtt import packets
from tidelog.gateways.mqtt.faults import PacketFault
from tidelog.gateways.mqtt.framing import PacketReader
from tidelog.gateways.mqtt.packets import (
    V311,
    Acknowledgement,
    Answers,
    Connack,
    Connect,
    FilterOptions,
    Packet,
    Publish,
    Subscribe,
)
from tidelog.gateways.mqtt.properties import Kind
from tidelog.testing.broker import RunningBroker

ANSWER_SECONDS_MAX = 10.0
END_SECONDS_MAX = 90.0
WINDOW = 20
TOPIC = "kills"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "num.partitions": "1",
}


class Client(threading.Thread):
    """A session of 3.1.1 that connects again until it is told to end."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name=name, daemon=True)
        self._port = port
        self.ending = threading.Event()
        self.connects = 0
        self.fault: BaseException | None = None
        self.kept: list[str] = []
        self._socket: socket.socket | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                try:
                    self._live()
                except (OSError, PacketFault, TimeoutError):
                    time.sleep(0.1)
        except BaseException as fault:
            self.fault = fault
            raise

    def _live(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as stream:
            self._socket = stream
            stream.settimeout(0.2)
            self._reader = PacketReader(1 << 20)
            self._send(Connect(V311, self.name, False, 60))
            heard = time.monotonic()
            while not self.ending.is_set():
                try:
                    data = stream.recv(65_536)
                except TimeoutError:
                    if time.monotonic() > heard + ANSWER_SECONDS_MAX:
                        raise
                    self.step()
                    continue
                if not data:
                    return
                heard = time.monotonic()
                for first, body in self._reader.feed(data):
                    packet = packets.decode(V311, first, body)
                    if isinstance(packet, Connack):
                        if packet.reason:
                            return
                        self.connects += 1
                        self.connected(packet.session_present)
                    else:
                        self.handle(packet)
                self.step()

    def _send(self, packet: Packet) -> None:
        assert self._socket is not None
        self._socket.sendall(packets.encode(V311, packet))

    def connected(self, present: bool) -> None:
        """The session goes on."""

    def handle(self, packet: Packet) -> None:
        """A packet of the gateway."""

    def step(self) -> None:
        """Whenever there is time."""


class Publisher(Client):
    """Publishes numbers with QoS 1 and 2 by turns."""

    def __init__(self, port: int) -> None:
        super().__init__("publisher", port)
        self.number = 0
        self.stopping = threading.Event()
        #: by packet identifier: the number, its QoS, and whether PUBREC came
        self.under_way: dict[int, tuple[int, int, bool]] = {}
        self._online = False
        self._packet_id = 0

    def connected(self, present: bool) -> None:
        if not present and self.number:
            self.kept.append("the publisher's session was lost")
        self._online = True
        for packet_id, (number, qos, received) in self.under_way.items():
            if received:
                self._send(Acknowledgement(Kind.PUBREL, packet_id))
            else:
                self._publish(packet_id, number, qos, duplicate=True)

    def _publish(self, packet_id: int, number: int, qos: int, duplicate: bool = False) -> None:
        self._send(Publish(f"{TOPIC}/{qos}", b"%d" % number, qos, False, duplicate, packet_id))

    def step(self) -> None:
        while self._online and not self.stopping.is_set() and len(self.under_way) < WINDOW:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id in self.under_way:
                continue
            self.number += 1
            qos = 1 + self.number % 2
            self.under_way[self._packet_id] = (self.number, qos, False)
            self._publish(self._packet_id, self.number, qos)

    def handle(self, packet: Packet) -> None:
        assert isinstance(packet, Acknowledgement), packet
        number, qos, _ = self.under_way.get(packet.packet_id, (0, 0, False))
        if packet.kind == Kind.PUBACK and qos == 1:
            del self.under_way[packet.packet_id]
        elif packet.kind == Kind.PUBREC:
            if qos == 2:
                self.under_way[packet.packet_id] = (number, qos, True)
            self._send(Acknowledgement(Kind.PUBREL, packet.packet_id))
        elif packet.kind == Kind.PUBCOMP:
            self.under_way.pop(packet.packet_id, None)

    def _live(self) -> None:
        self._online = False
        super()._live()


class Subscriber(Client):
    """Counts what it receives; a QoS 2 counts when its packet identifier is new."""

    def __init__(self, port: int) -> None:
        super().__init__("subscriber", port)
        self.received: dict[int, collections.Counter[int]] = {
            1: collections.Counter(),
            2: collections.Counter(),
        }
        self.subscribed = threading.Event()
        self._open: set[int] = set()

    def connected(self, present: bool) -> None:
        if not present:
            if self.subscribed.is_set():
                self.kept.append("the subscriber's session was lost")
            self._open.clear()
            self._send(Subscribe(1, [FilterOptions(f"{TOPIC}/#", 2)]))

    def handle(self, packet: Packet) -> None:
        if isinstance(packet, Answers):
            self.subscribed.set()
        elif isinstance(packet, Publish) and packet.qos == 1:
            self.received[1][int(packet.payload)] += 1
            self._send(Acknowledgement(Kind.PUBACK, packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.packet_id not in self._open:
                self._open.add(packet.packet_id)
                self.received[2][int(packet.payload)] += 1
            self._send(Acknowledgement(Kind.PUBREC, packet.packet_id))
        elif isinstance(packet, Acknowledgement) and packet.kind == Kind.PUBREL:
            self._open.discard(packet.packet_id)
            self._send(Acknowledgement(Kind.PUBCOMP, packet.packet_id))


def run(seconds: float, seed: int, pause: float) -> list[str]:
    """What did not hold; empty for all well."""
    source = random.Random(seed)
    with RunningBroker(SETTINGS, mode="process") as broker, MqttProcess(broker.bootstrap) as gateway:
        publisher, subscriber = Publisher(gateway.port), Subscriber(gateway.port)
        subscriber.start()
        assert subscriber.subscribed.wait(20), "no SUBACK"
        publisher.start()
        deadline = time.monotonic() + seconds
        kills = collections.Counter[str]()
        while time.monotonic() < deadline:
            time.sleep(source.uniform(0.3, pause))
            victim = "gateway" if sum(kills.values()) % 2 == 0 else "broker"
            kills[victim] += 1
            if victim == "gateway":
                gateway.kill()
                gateway.start()
            else:
                broker.kill()
                broker.start()
        publisher.stopping.set()
        end = time.monotonic() + END_SECONDS_MAX
        wanted = {qos: {n for n in range(1, publisher.number + 1) if 1 + n % 2 == qos} for qos in (1, 2)}
        while time.monotonic() < end and (
            publisher.under_way or any(wanted[qos] - subscriber.received[qos].keys() for qos in (1, 2))
        ):
            time.sleep(0.1)
        time.sleep(1.0)  # what should not come
        for client in (publisher, subscriber):
            client.ending.set()
            client.join(10)
        found = [*publisher.kept, *subscriber.kept]
        found += [
            f"{client.name} failed: {client.fault}" for client in (publisher, subscriber) if client.fault
        ]
        if publisher.under_way:
            found.append(f"never acknowledged: {publisher.under_way}")
        for qos in (1, 2):
            missing = sorted(wanted[qos] - subscriber.received[qos].keys())
            if missing:
                found.append(f"QoS {qos}: {len(missing)} lost, the first {missing[0]}")
        twice = [number for number, count in subscriber.received[2].items() if count > 1]
        if twice:
            found.append(f"QoS 2: {len(twice)} received twice, the first {twice[0]}")
        written = _written(broker.bootstrap)
        doubled = [number for number, count in written.items() if count > 1]
        if doubled:
            found.append(f"QoS 2: {len(doubled)} written twice, the first {doubled[0]}")
        again = sum(subscriber.received[1].values()) - len(subscriber.received[1])
        print(
            f"{publisher.number} messages, {kills['gateway']} kills of the gateway, {kills['broker']} of the"
            f" broker, {publisher.connects + subscriber.connects} connections, {again} of QoS 1 again"
        )
        if found:
            print(gateway.log()[-4_000:], file=sys.stderr)
        return found


def _written(bootstrap: str) -> collections.Counter[int]:
    """How often each number of QoS 2 is in the Kafka topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kills",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe(["mqtt"])
    counts: collections.Counter[int] = collections.Counter()
    deadline = time.monotonic() + END_SECONDS_MAX
    while time.monotonic() < deadline:
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error() is not None:
            break  # the end
        if record.key() == f"{TOPIC}/2".encode():
            counts[int(record.value() or b"0")] += 1
    consumer.close()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=4.0, help="the longest time between two kills")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = run(arguments.seconds, arguments.seed, arguments.pause)
    for line in found:
        print(line)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
