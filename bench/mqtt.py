"""MQTT through a gateway beside mosquitto (Debian), in one run, and what many idle devices cost.

    python -m bench.mqtt --seconds 10 --devices 2000

Publishers and a subscriber are bare sockets with packets made ahead, the same for both, in one process of
their own: what they cost is in both lines. Each publisher keeps WINDOW messages of QoS 1 under way. A line is
messages acknowledged, and received by the subscriber, in a second; the turns alternate. mosquitto keeps its
messages in memory, the gateway writes them to a broker with acks=all.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from tests.support.mqtt_process import MqttProcess
from tidelog.gateways.mqtt import packets
from tidelog.gateways.mqtt.framing import PacketReader
from tidelog.gateways.mqtt.packets import V311, Connect, FilterOptions, Publish, Subscribe
from tidelog.gateways.mqtt.properties import Kind
from tidelog.testing.broker import RunningBroker

WINDOW = 50
PAYLOAD_BYTES = 100
START_SECONDS_MAX = 20.0


class Client(asyncio.Protocol):
    """Connects, and counts what it gets."""

    def __init__(self, name: str, filters: str = "", topic: str = "") -> None:
        self._name, self._filter, self._topic = name, filters, topic
        self._reader = PacketReader(1 << 20)
        self.ready = asyncio.get_running_loop().create_future()
        self.acknowledged = 0
        self.received = 0
        self.sending = False
        self._packet_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._write(packets.encode(V311, Connect(V311, self._name, True, 0)))

    def _write(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        answers: list[bytes] = []
        for first, body in self._reader.feed(data):
            kind = first >> 4
            if kind == Kind.PUBACK:
                self.acknowledged += 1
                if self.sending:
                    answers.append(self._next())
            elif kind == Kind.PUBLISH:
                self.received += 1
                where = 2 + (body[0] << 8 | body[1])
                answers.append(b"\x40\x02" + body[where : where + 2])
            elif kind == Kind.CONNACK:
                if self._filter:
                    self._write(packets.encode(V311, Subscribe(1, [FilterOptions(self._filter, 1)])))
                else:
                    self.ready.set_result(None)
            elif kind == Kind.SUBACK:
                self.ready.set_result(None)
        if answers:
            self._write(b"".join(answers))

    def _next(self) -> bytes:
        self._packet_id = self._packet_id % 65_535 + 1
        number = self._packet_id
        head = self._head
        return head[0] + bytes((number >> 8, number & 0xFF)) + head[1]

    def start(self) -> None:
        whole = packets.encode(V311, Publish(self._topic, b"x" * PAYLOAD_BYTES, 1, packet_id=1))
        cut = len(whole) - PAYLOAD_BYTES - 2
        self._head = (whole[:cut], whole[cut + 2 :])
        self.sending = True
        self._write(b"".join(self._next() for _ in range(WINDOW)))

    def publish_one(self) -> None:
        if not hasattr(self, "_head"):
            whole = packets.encode(V311, Publish(self._topic, b"x" * PAYLOAD_BYTES, 1, packet_id=1))
            cut = len(whole) - PAYLOAD_BYTES - 2
            self._head = (whole[:cut], whole[cut + 2 :])
        self._write(self._next())


async def connect(port: int, name: str, filters: str = "", topic: str = "") -> Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(name, filters, topic), "127.0.0.1", port)
    await asyncio.wait_for(client.ready, START_SECONDS_MAX)
    return client


class Rates(NamedTuple):
    """Messages acknowledged and received in a second, and acknowledged at all."""

    acknowledged: float
    received: float
    messages: int


def median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


async def throughput(port: int, publishers: int, seconds: float) -> Rates:
    """As many messages as the other side takes."""
    subscriber = await connect(port, "bench-subscriber", "bench/#")
    clients = [await connect(port, f"bench-{n}", topic=f"bench/{n}") for n in range(publishers)]
    for client in clients:
        client.start()
    await asyncio.sleep(seconds / 4)
    began, acknowledged = time.monotonic(), sum(client.acknowledged for client in clients)
    received = subscriber.received
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    acknowledged = sum(client.acknowledged for client in clients) - acknowledged
    received = subscriber.received - received
    for client in clients:
        client.sending = False
    await asyncio.sleep(1)
    total = sum(client.acknowledged for client in clients)
    for client in (*clients, subscriber):
        client.transport.close()
    return Rates(acknowledged / took, received / took, total)


async def many(port: int, process_id: int, devices: int, publishing: int, seconds: float) -> dict[str, float]:
    """Idle devices, each with a subscription of its own, and some that publish once a second."""
    found: dict[str, float] = {"memory_before_mb": memory_mb(process_id)}
    began = time.monotonic()
    clients: list[Client] = []
    for start in range(0, devices, 50):
        names = range(start, min(start + 50, devices))
        clients += await asyncio.gather(
            *(connect(port, f"device-{n}", f"command/{n}", f"device/{n}") for n in names)
        )
    found["connecting_seconds"] = time.monotonic() - began
    await asyncio.sleep(5)
    found["memory_mb"] = memory_mb(process_id)
    for label, active in (("idle", 0), ("publishing", publishing)):
        cpu, began = cpu_seconds(process_id), time.monotonic()
        for _ in range(int(seconds)):
            for client in clients[:active]:
                client.publish_one()
            await asyncio.sleep(1)
        found[f"cpu_percent_{label}"] = 100 * (cpu_seconds(process_id) - cpu) / (time.monotonic() - began)
    found["acknowledged"] = sum(client.acknowledged for client in clients)
    for client in clients:
        client.transport.close()
    return found


def memory_mb(process_id: int) -> float:
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@contextlib.contextmanager
def mosquitto() -> Iterator[tuple[int, int]]:
    """A mosquitto on a free port: the port and its process."""
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
        settings.flush()
        process = subprocess.Popen([program, "-c", settings.name], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            yield port, process.pid
        finally:
            process.kill()
            process.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publishers", type=int, default=10)
    parser.add_argument("--devices", type=int, default=2_000)
    parser.add_argument("--publishing", type=int, default=200)
    arguments = parser.parse_args()
    uvloop.install()
    rows: dict[str, list[dict[str, float]]] = {"mosquitto": [], "gateway": []}
    with (
        RunningBroker({"num.partitions": "1"}, mode="process") as broker,
        MqttProcess(broker.bootstrap) as gateway,
        mosquitto() as (peer, peer_id),
    ):
        assert broker.process_id is not None
        places = {"mosquitto": (peer, [peer_id]), "gateway": (gateway.port, [gateway.process_id])}
        places["gateway"][1].append(broker.process_id)
        for _ in range(arguments.rounds):
            for name, (port, process_ids) in places.items():
                cpu = [cpu_seconds(each) for each in process_ids]
                found = asyncio.run(throughput(port, arguments.publishers, arguments.seconds))
                spent = [cpu_seconds(each) - before for each, before in zip(process_ids, cpu, strict=True)]
                # Of a message that was published and received, also while the rates are not yet counted.
                row = {"acknowledged_per_second": found.acknowledged, "received_per_second": found.received}
                row["cpu_microseconds"] = 1e6 * spent[0] / found.messages
                if len(spent) > 1:
                    row["cpu_microseconds_of_the_broker"] = 1e6 * spent[1] / found.messages
                rows[name].append(row)
        report: dict[str, object] = {name: median(found) for name, found in rows.items()}
        report["ratio"] = (
            median(rows["gateway"])["acknowledged_per_second"]
            / median(rows["mosquitto"])["acknowledged_per_second"]
        )
        if arguments.devices:
            report["devices"] = asyncio.run(
                many(gateway.port, gateway.process_id, arguments.devices, arguments.publishing, 20)
            )
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
