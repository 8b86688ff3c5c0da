"""Quotas under a client that means to get round them: many connections, new ones for each request.

    python -m bench.quota_evasion [--seconds 30] [--connections 1,10,50] [--bootstrap HOST:PORT --pid PID]

The client has 1 % of the broker's time (`request_percentage`), then 100 KB a second (`producer_byte_rate`),
and ignores `throttle_time_ms`. Each of its connections asks for the metadata of 2,000 topics that are not
there, or writes a batch of 500 KB, again and again; `keep` on the same connection, `anew` on another one for
each request. Measured from outside: the processor time of the broker's process, and the bytes that were
acknowledged. What the windows hold at once (10 s worth) is the client's by right, and part of the figures.
With an address and a process id another broker is measured, such as Apache Kafka.
"""

import argparse
import os
import socket
import struct
import threading
import time
from pathlib import Path

from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link
from tidelog.client.requests import frame_prefix
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.testing.broker import RunningBroker

BY_NAME = {api.name: api for api in APIS.values()}
CLIENT_ID = b"attacker"
TOPIC_COUNT = 2_000
PERCENT = 1.0
BYTE_RATE = 100_000
BATCH_BYTES = 500_000
#: between two measurements; without limits what was is forgotten
REST_SECONDS = 2
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def ask(bootstrap: str, name: str, version: int, fields: dict[str, object]) -> object:
    host, port = bootstrap.rsplit(":", 1)
    link = Link.open(host, int(port), ClientSettings.from_options({"bootstrap.servers": bootstrap}))
    api = BY_NAME[name]
    try:
        ticket = link.send(api.key, version, messages.encode_request(api, version, fields))
        return messages.decode_response(api, version, memoryview(link.receive(ticket)))
    finally:
        link.close()


def set_limits(bootstrap: str, **values: float | None) -> None:
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    entity = [{"entity_type": "client-id", "entity_name": CLIENT_ID.decode()}]
    ask(
        bootstrap,
        "AlterClientQuotas",
        1,
        {"entries": [{"entity": entity, "ops": ops}], "validate_only": False},
    )
    time.sleep(0.5)


def metadata_frame() -> bytes:
    api = BY_NAME["Metadata"]
    topics = [{"topic_id": None, "name": f"there-is-no-such-topic-{index}"} for index in range(TOPIC_COUNT)]
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    body = messages.encode_request(api, 12, fields)
    return frame_prefix(api.key, 12, 1, CLIENT_ID, len(body)) + body


def produce_frame(topic: str) -> bytes:
    record = Record(0, 1_700_000_000_000, None, b"x" * BATCH_BYTES, ())
    batch = bytes(build_batch([record]))
    name = topic.encode()
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    return frame_prefix(0, 7, 1, CLIENT_ID, len(body)) + body


class Attacker(threading.Thread):
    """One connection at a time, as fast as it is let."""

    def __init__(self, bootstrap: str, frame: bytes, *, anew: bool, until: float) -> None:
        super().__init__(daemon=True)
        host, port = bootstrap.rsplit(":", 1)
        self._address = (host, int(port))
        self._frame = frame
        self._anew = anew
        self._until = until
        self.answers = 0

    def run(self) -> None:
        while time.monotonic() < self._until:
            try:
                with socket.create_connection(self._address, timeout=5) as connection:
                    while time.monotonic() < self._until:
                        self._once(connection)
                        if self._anew:
                            break
            except OSError:
                pass

    def _once(self, connection: socket.socket) -> None:
        connection.settimeout(max(self._until - time.monotonic(), 0.05))
        connection.sendall(self._frame)
        size = struct.unpack(">i", self._exactly(connection, 4))[0]
        self._exactly(connection, size)
        self.answers += 1

    @staticmethod
    def _exactly(connection: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = connection.recv(size - len(data))
            if not piece:
                raise OSError("closed")
            data += piece
        return bytes(data)


def attack(
    bootstrap: str, pid: int, frame: bytes, count: int, seconds: float, *, anew: bool
) -> tuple[float, int]:
    """The broker's processor time in percent of one core, without what it takes idle, and the answers."""
    idle = cpu_seconds(pid)
    time.sleep(3)
    idle = (cpu_seconds(pid) - idle) / 3
    before, begun = cpu_seconds(pid), time.monotonic()
    attackers = [Attacker(bootstrap, frame, anew=anew, until=begun + seconds) for _ in range(count)]
    for attacker in attackers:
        attacker.start()
    for attacker in attackers:
        attacker.join()
    took = time.monotonic() - begun
    used = cpu_seconds(pid) - before
    return 100 * (used / took - idle), sum(attacker.answers for attacker in attackers)


def measure(bootstrap: str, pid: int, seconds: float, counts: list[int]) -> None:
    topic = f"quota-{os.getpid()}"
    new = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    ask(bootstrap, "CreateTopics", 5, {"topics": [new], "timeout": 10_000, "validate_only": False})
    time.sleep(1)
    print(f"{'limit':24} {'connections':>12} {'':6} {'answers':>8} {'broker CPU %':>13} {'B/s':>12}")
    for count in counts:
        for anew in (False, True):
            for key, value, frame in (
                ("request_percentage", PERCENT, metadata_frame()),
                ("producer_byte_rate", float(BYTE_RATE), produce_frame(topic)),
            ):
                set_limits(bootstrap, **{key: value})
                percent, answers = attack(bootstrap, pid, frame, count, seconds, anew=anew)
                set_limits(bootstrap, **{key: None})
                rate = f"{answers * len(frame) / seconds:,.0f}" if key == "producer_byte_rate" else ""
                how = "anew" if anew else "keep"
                print(f"{key:24} {count:>12} {how:6} {answers:>8} {percent:>13.2f} {rate:>12}", flush=True)
                time.sleep(REST_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--connections", default="1,10,50")
    parser.add_argument("--bootstrap")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args()
    counts = [int(count) for count in options.connections.split(",")]
    if options.bootstrap:
        measure(options.bootstrap, options.pid, options.seconds, counts)
        return
    with RunningBroker(mode="process") as broker:
        measure(broker.bootstrap, broker.process_id or 0, options.seconds, counts)


if __name__ == "__main__":
    main()
