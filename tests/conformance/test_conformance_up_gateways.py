"""`tidelog up --mqtt-port --amqp-port`: with one broker, three, --secure; and where it cannot be."""

import json
import logging
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer

from tests.support.child_programs import environment, program
from tests.support.mqtt_client import V5, MqttClient
from tidelog.testing.ports import ReservedPort

pytestmark = [pytest.mark.xdist_group("up-gateways"), pytest.mark.timeout(150)]

SECONDS_MAX = 60.0
# It tells at length of every attempt while a gateway starts.
logging.getLogger("pika").setLevel(logging.CRITICAL)


class Up:
    """The command under test; what it says is read line by line."""

    def __init__(self, data: Path, *words: str) -> None:
        self.ports = {"mqtt": ReservedPort(), "amqp": ReservedPort(), "console": ReservedPort()}
        command = [*program("tidelog.cli"), "up", "--json", "--port", "0", "--data", str(data)]
        for name, reserved in self.ports.items():
            command += [f"--{name}-port", str(reserved.port)]
        self.process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, env=environment())
        self._received = b""

    def __enter__(self) -> "Up":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        for reserved in self.ports.values():
            reserved.close()

    def event(self, kind: str) -> dict[str, Any]:
        """The next event of this kind."""
        deadline = time.monotonic() + SECONDS_MAX
        assert self.process.stdout is not None
        while True:
            while b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                event: dict[str, Any] = json.loads(line)
                if event["event"] == kind:
                    return event
            readable, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            piece = os.read(self.process.stdout.fileno(), 65536) if readable else b""
            assert piece, f"no event {kind!r}"
            self._received += piece

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(SECONDS_MAX)


def eventually(connect: Callable[[], Any]) -> Any:
    """A gateway is announced when it is started; it listens a little later."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return connect()
        except (OSError, pika.exceptions.AMQPConnectionError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def pika_connection(port: int, user: str = "guest", password: str = "guest", tls: Any = None) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            port,
            credentials=pika.PlainCredentials(user, password),
            ssl_options=None if tls is None else pika.SSLOptions(tls, "localhost"),
        )
    )


def read_all(bootstrap: str, topic: str, count: int, **more: str) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", **more}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found


def process_at(port: int) -> int:
    """Who was started with this port."""
    for folder in Path("/proc").iterdir():
        words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
        if b"gateway" in words and b"%d" % port in words:
            return int(folder.name)
    raise LookupError(f"nobody has the port {port}")


def port_is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture(params=[(), ("--brokers", "3")], ids=["one", "three"])
def brokers(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    yield request.param


def test_both_gateways_come_and_go_with_the_brokers(tmp_path: Path, brokers: tuple[str, ...]) -> None:
    with Up(tmp_path / "data", *brokers) as up:
        ready = up.event("cluster_ready" if brokers else "ready")
        addresses = {name: up.event(name)["address"] for name in ("console", "mqtt", "amqp")}
        mqtt_port, amqp_port = up.ports["mqtt"].port, up.ports["amqp"].port
        assert addresses["mqtt"] == f"mqtt://127.0.0.1:{mqtt_port}"
        assert addresses["amqp"] == f"amqp://127.0.0.1:{amqp_port}"
        device = eventually(MqttClient(mqtt_port, version=V5).connect)
        device.publish("sensors/7", b"21.5", 1)
        connection = eventually(lambda: pika_connection(amqp_port))
        channel = connection.channel()
        channel.queue_declare("jobs")
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"one", mandatory=True)
        assert read_all(ready["bootstrap"], "mqtt", 1) == [b"21.5"]
        assert read_all(ready["bootstrap"], "jobs", 1) == [b"one"]
        # One that dies comes back by itself.
        holder = process_at(amqp_port)
        os.kill(holder, signal.SIGKILL)
        again = eventually(lambda: pika_connection(amqp_port))
        assert again.channel().queue_declare("jobs", passive=True).method.message_count == 1
        assert process_at(amqp_port) != holder
        assert up.stop() == 0
        if brokers:
            # The gateways end before the brokers do, and say so.
            device.wait(lambda: device.disconnected is not None, "DISCONNECT")
            assert device.disconnected.value == 0x8B
        device.paho.loop_stop()
        assert port_is_free(mqtt_port) and port_is_free(amqp_port)


def test_a_secure_cluster_has_secure_gateways(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--secure") as up:
        bootstrap = up.event("ready")["bootstrap"]
        assert up.event("mqtt")["address"].startswith("mqtts://")
        assert up.event("amqp")["address"].startswith("amqps://")
        folder = tmp_path / "data" / "security"
        password = json.loads((folder / "credentials.json").read_text())["admin"]
        trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))

        def device(user: str | None, word: str | None) -> MqttClient:
            return MqttClient(
                up.ports["mqtt"].port,
                version=V5,
                user=user,
                password=word,
                prepare=lambda paho: paho.tls_set_context(trusting),
            )

        with eventually(device("admin", password).connect) as admin:
            assert admin.reason.value == 0
            admin.publish("sensors/7", b"21.5", 1)
        for user, word in (("admin", "wrong"), (None, None)):
            with device(user, word) as refused:
                assert refused.reason.value == 0x86
        amqp_port = up.ports["amqp"].port
        connection = eventually(lambda: pika_connection(amqp_port, "admin", password, trusting))
        connection.channel().queue_declare("jobs")
        connection.close()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika_connection(amqp_port, "admin", "wrong", trusting)
        settings = dict(
            line.split("=", 1) for line in (folder / "client.properties").read_text().splitlines() if line
        )
        del settings["bootstrap.servers"]
        assert read_all(bootstrap, "mqtt", 1, **settings) == [b"21.5"]
        assert up.stop() == 0


def test_a_port_that_is_taken_is_told_with_its_option(tmp_path: Path) -> None:
    """The broker goes on, as without a console; nobody else answers at that port unnoticed."""
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        up = stack.enter_context(Up(tmp_path / "data", "--mqtt-port", str(taken)))
        up.event("ready")
        told = up.event("mqtt failed")
        assert told["reason"] == f"port {taken} is in use: --mqtt-port chooses another"
        assert up.event("amqp")["address"]
        assert up.stop() == 0


def test_a_gateway_that_is_not_installed_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pamqp'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "up", "--amqp-port", "5672", "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])},
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the AMQP gateway is not installed" in done.stderr
    assert "pip install 'tidelog[amqp]'" in done.stderr
    assert not (tmp_path / "data").exists()
