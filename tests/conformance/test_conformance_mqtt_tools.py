"""Other clients of the MQTT gateway: mosquitto's tools, aiomqtt; and connections that mean no good."""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest

from tests.chaos.hostile_gateway_clients import attack_mqtt
from tests.conformance.drivers.contract import new_name
from tests.support.mqtt_client import V5, MqttClient
from tests.support.mqtt_process import MqttProcess
from tidelog.gateways.mqtt import packets

pytestmark = pytest.mark.xdist_group("mqtt")

SECONDS_MAX = 20
HOSTILE = 300
MEMORY_GROWTH_MB_MAX = 30


@pytest.fixture(scope="module")
def gateway(bootstrap: str) -> Iterator[MqttProcess]:
    with MqttProcess(bootstrap, options=("--topic", new_name("mqtt")), name=new_name("gateway")) as running:
        yield running


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_the_tools_of_mosquitto(gateway: MqttProcess, version: str) -> None:
    if shutil.which("mosquitto_pub") is None:
        assert os.environ.get("CI") != "true", "mosquitto-clients is missing; run tests/conformance/setup"
        pytest.skip("mosquitto-clients is missing; run tests/conformance/setup")
    topic, common = new_name("tools"), ["-h", "127.0.0.1", "-p", str(gateway.port), "-V", version]
    # It keeps what it writes to a pipe until it ends, unless it is told otherwise.
    receive = ["stdbuf", "-oL", "mosquitto_sub", *common, "-t", f"{topic}/#", "-q", "2", "-C", "4", "-d"]
    receive += ["-W", str(SECONDS_MAX)]
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True, bufsize=1) as subscriber:
        assert subscriber.stdout is not None
        try:
            lines = iter(subscriber.stdout.readline, "")
            assert any(line.startswith("Subscribed") for line in lines)
            for qos in ("0", "1", "2"):
                send = ["mosquitto_pub", *common, "-t", f"{topic}/{qos}", "-m", f"with {qos}", "-q", qos]
                subprocess.run(send, check=True, timeout=SECONDS_MAX)
            stdin = ["mosquitto_pub", *common, "-t", f"{topic}/0", "-s", "-q", "1"]
            subprocess.run(stdin, check=True, timeout=SECONDS_MAX, input=b"x" * 500_000)
            texts = [line.strip() for line in lines if not line.startswith(("Client", "Subscribed"))]
            assert subscriber.wait(SECONDS_MAX) == 0
            assert sorted(texts) == ["with 0", "with 1", "with 2", "x" * 500_000]
        finally:
            subscriber.kill()


def test_aiomqtt(gateway: MqttProcess) -> None:
    topic = new_name("aio")

    async def talk() -> list[bytes]:
        version = aiomqtt.ProtocolVersion.V5
        async with aiomqtt.Client("127.0.0.1", gateway.port, protocol=version) as client:
            await client.subscribe(f"{topic}/+", qos=2)
            for qos in (1, 2):
                await client.publish(f"{topic}/{qos}", f"{qos}", qos=qos)
            found = []
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                found.append(message.payload)
                if len(found) == 2:
                    break
            return sorted(found)

    assert asyncio.run(asyncio.wait_for(talk(), SECONDS_MAX)) == [b"1", b"2"]


def memory_mb(process_id: int) -> float:
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def test_hostile_packets_hurt_nobody_else(gateway: MqttProcess) -> None:
    source = random.Random(5)
    topic = new_name("hostile")
    with MqttClient(gateway.port, version=V5) as good:
        good.subscribe(topic, qos=1)
        before = memory_mb(gateway.process_id)
        for _ in range(HOSTILE):
            attack_mqtt(gateway.port, source)
        good.publish(topic, b"still there", 1)
        assert good.expect(1) == [(topic, b"still there")]
        assert memory_mb(gateway.process_id) - before < MEMORY_GROWTH_MB_MAX
    assert "Traceback" not in gateway.log()


def test_limits_of_a_connection(gateway: MqttProcess) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as stream:
        stream.sendall(b"\x10\xff\xff\xff\x7f")  # CONNECT of 256 MiB
        assert stream.recv(100) == b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as stream:
        stream.sendall(packets.encode(V5, packets.Connect(V5, new_name("c"), True, 1)))
        answer = stream.recv(200)
        assert answer[0] == 0x20 and answer[3] == 0
        began = time.monotonic()
        left = b""
        while data := stream.recv(200):  # silent for longer than its keep-alive
            left += data
        assert left == b"\xe0\x02\x8d\x00"
        assert 1 < time.monotonic() - began < SECONDS_MAX
