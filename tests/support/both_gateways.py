"""An MQTT and an AMQP gateway at one topic, and kombu (what Celery's workers speak AMQP with) for tests.

with both_gateways(bootstrap, folder, "readings") as doors:
    doors.device().publish("sensors/7", b"21.5")
    doors.take(1)
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kombu.connection import Connection
from kombu.entity import Queue

from tests.support.amqp_gateway import GatewayProcess
from tests.support.mqtt_client import V5, MqttClient
from tests.support.mqtt_process import MqttProcess

SECONDS_MAX = 40.0


class Taken(NamedTuple):
    """A message as a worker gets it."""

    body: bytes
    headers: dict[str, Any]


class Doors:
    """`sensors/<key>` is the topic, and so is the queue `work.<topic>`."""

    def __init__(self, mqtt: MqttProcess, amqp: GatewayProcess, topic: str) -> None:
        self._mqtt, self._amqp = mqtt, amqp
        self._queue = Queue(f"work.{topic}", queue_arguments={"x-tidelog-topic": topic}, durable=True)

    def device(self) -> MqttClient:
        """A client of MQTT 5; connect it with `with`."""
        return MqttClient(self._mqtt.port, version=V5)

    def _connection(self) -> Any:
        return Connection(f"amqp://127.0.0.1:{self._amqp.port}//", connect_timeout=SECONDS_MAX)

    def declare(self) -> None:
        with self._connection() as connection:
            self._queue(connection.channel()).declare()

    def send(self, body: bytes, headers: dict[str, str]) -> None:
        """Publish to the queue; returns when it is confirmed."""
        with self._connection() as connection:
            connection.transport_options = {"confirm_publish": True}
            producer = connection.Producer()
            producer.publish(
                body,
                routing_key=self._queue.name,
                headers=headers,
                content_type="application/octet-stream",
                content_encoding="binary",
                retry=False,
            )

    def take(self, count: int) -> list[Taken]:
        """So many messages of the queue, acknowledged one by one."""
        found: list[Taken] = []

        def came(message: Any) -> None:
            found.append(Taken(bytes(message.body), dict(message.headers)))
            message.ack()

        deadline = time.monotonic() + SECONDS_MAX
        with (
            self._connection() as connection,
            connection.Consumer([self._queue], on_message=came, auto_declare=False),
        ):
            while len(found) < count:
                try:
                    connection.drain_events(timeout=1.0)
                except TimeoutError:
                    assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        return found


@contextmanager
def both_gateways(bootstrap: str, folder: Path, topic: str) -> Iterator[Doors]:
    """The queue is there, and so is the topic."""
    rules = folder / f"{topic}.toml"
    rules.write_text(f'[[rule]]\nfilter = "sensors/+"\ntopic = "{topic}"\nkey = "{{2}}"\n')
    with (
        MqttProcess(bootstrap, options=("--map", str(rules)), name=topic) as mqtt,
        GatewayProcess(bootstrap) as amqp,
    ):
        doors = Doors(mqtt, amqp, topic)
        doors.declare()
        yield doors
