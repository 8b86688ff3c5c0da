"""Hostile bytes against live gateways: `python -m tests.chaos.fuzz_gateways [--connections N] [--seed N]`.

Connections of `hostile_gateway_clients` to an MQTT and an AMQP gateway, several at a time. Meanwhile a
healthy client of each protocol publishes with acknowledgements, and the memory of both processes is sampled.
At the end all that was acknowledged must be in the topics, the processes must be those that were started,
their logs must hold no traceback, and their memory must have stayed below the bound: then the exit code is 0.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from confluent_kafka import Consumer

from tests.chaos.hostile_gateway_clients import attack_amqp, attack_mqtt
from tests.support.amqp_gateway import GatewayProcess
from tests.support.mqtt_client import V5, MqttClient
from tests.support.mqtt_process import MqttProcess
from tidelog.testing.broker import RunningBroker
from tidelog.testing.serving_command import ServingCommand

#: how much more memory a gateway may have at any moment than before
GROWTH_BYTES_MAX = 64 << 20
SENDERS = 2
SAMPLE_SECONDS = 0.2
PAUSE_SECONDS = 0.02
READ_SECONDS_MAX = 60.0
TRACEBACK_LETTERS = 3_000
MQTT_TOPIC, QUEUE, HOSTILE_QUEUE = "mqtt", "healthy", "hostile"


def resident_bytes(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) << 10


class Watched:
    """A gateway, its memory and the process that it was at first."""

    def __init__(self, gateway: ServingCommand) -> None:
        self.gateway = gateway
        self.process_id = gateway.process_id
        self.before = self.largest = resident_bytes(gateway.process_id)

    def sample(self) -> None:
        self.largest = max(self.largest, resident_bytes(self.process_id))

    def faults(self) -> list[str]:
        found = []
        if self.largest - self.before > GROWTH_BYTES_MAX:
            found.append(f"{self.gateway!r} grew by {(self.largest - self.before) >> 20} MiB")
        if "Traceback" in self.gateway.log():
            _, _, after = self.gateway.log().partition("Traceback")
            found.append(f"{self.gateway!r} wrote a traceback:\nTraceback{after[:TRACEBACK_LETTERS]}")
        return found


class Healthy:
    """Publishes by both protocols until it is told to stop; what was acknowledged is kept."""

    def __init__(self, mqtt_port: int, amqp_port: int) -> None:
        self.acknowledged: dict[str, list[bytes]] = {MQTT_TOPIC: [], QUEUE: []}
        self.slowest_seconds = 0.0
        self._device = MqttClient(mqtt_port, version=V5).connect()
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
        self._channel = self._connection.channel()
        for queue in (QUEUE, HOSTILE_QUEUE):
            self._channel.queue_declare(queue)
        self._channel.confirm_delivery()

    def publish(self, number: int) -> None:
        """One message each way; returns when both are acknowledged, or raises."""
        value = b"%d" % number
        began = time.monotonic()
        self._device.publish("healthy/device", value, 1)
        self.acknowledged[MQTT_TOPIC].append(value)
        self._channel.basic_publish("", QUEUE, value, mandatory=True)
        self.acknowledged[QUEUE].append(value)
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)

    def close(self) -> None:
        self._device.close()
        self._connection.close()

    def lost(self, bootstrap: str) -> list[str]:
        """What was acknowledged and is not there."""
        found = []
        for topic, values in self.acknowledged.items():
            missing = Counter(values) - Counter(_values(bootstrap, topic, set(values)))
            if missing:
                found.append(f"{len(missing)} acknowledged messages are not in {topic}")
        return found


def _values(bootstrap: str, topic: str, wanted: set[bytes]) -> list[bytes]:
    """The values of a topic, until all that are wanted came or time is over."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "f", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    left = set(wanted)
    deadline = time.monotonic() + READ_SECONDS_MAX
    while left and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found.append(message.value() or b"")
                left.discard(found[-1])
    consumer.close()
    return found


def fuzz(connections: int, seed: int) -> tuple[list[str], dict[str, Any]]:
    """What did not hold, and what was seen."""
    settings = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with (
        RunningBroker(settings, mode="process") as broker,
        MqttProcess(broker.bootstrap) as mqtt,
        GatewayProcess(broker.bootstrap) as amqp,
    ):
        healthy = Healthy(mqtt.port, amqp.port)
        healthy.publish(0)
        watched = [Watched(mqtt), Watched(amqp)]
        attacks: list[Callable[[random.Random], None]] = [
            lambda choices: attack_mqtt(mqtt.port, choices),
            lambda choices: attack_amqp(amqp.port, choices, HOSTILE_QUEUE),
        ]
        senders = [
            threading.Thread(
                target=_attack, args=(attacks, random.Random(seed * SENDERS + number), connections // SENDERS)
            )
            for number in range(SENDERS)
        ]
        for sender in senders:
            sender.start()
        sampled, number = 0.0, 0
        while any(sender.is_alive() for sender in senders):
            number += 1
            healthy.publish(number)
            if time.monotonic() - sampled > SAMPLE_SECONDS:
                sampled = time.monotonic()
                for each in watched:
                    each.sample()
            time.sleep(PAUSE_SECONDS)
        healthy.close()
        faults = [fault for each in watched for fault in each.faults()]
        faults += healthy.lost(broker.bootstrap)
        seen = {
            "hostile connections": connections // SENDERS * SENDERS,
            "acknowledged meanwhile": 2 * number,
            "slowest pair in seconds": round(healthy.slowest_seconds, 2),
            "MiB more at most": [(each.largest - each.before) >> 20 for each in watched],
        }
    return faults, seen


def _attack(attacks: list[Callable[[random.Random], None]], choices: random.Random, count: int) -> None:
    for number in range(count):
        attacks[number % len(attacks)](choices)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    faults, seen = fuzz(arguments.connections, arguments.seed)
    for name, value in seen.items():
        print(f"{name:<26} {value}")
    for fault in faults:
        print(f"DID NOT HOLD: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
