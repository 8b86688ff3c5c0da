"""What TLS and a login cost: produce and fetch by PLAINTEXT, SSL and SASL_SSL of one broker, in one run.

    python -m bench.tls [--rounds 5] [--megabytes 128] [--json]

Two clients: `batches` sends batches of 512 KB made beforehand, four at a time, and reads them back by the
megabyte, so that the broker and the encryption are what takes time; `records` is confluent-kafka with records
of 1 KB. The protocols take turns round by round, so that a busy moment hits all of them; the median of the
rounds is shown, its share of PLAINTEXT, and the CPU seconds of the broker per gigabyte. It asserts nothing.
"""

import argparse
import json
import os
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.security.certificates import Authority, write_secret
from tidelog.testing.broker import RunningBroker
from tidelog.testing.ports import ReservedPort

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_SSL")
USER, PASSWORD = "bench", "of no value"
PRODUCE, FETCH = 0, 1
BATCH_BYTES, RECORD_BYTES, FETCH_BYTES = 512 << 10, 1_000, 1 << 20
IN_FLIGHT = 4
WAIT_SECONDS = 120.0
MEGABYTE = 1_000_000


class Measured(NamedTuple):
    """One transfer."""

    bytes: int
    seconds: float
    broker_cpu_seconds: float


class Bench:
    """The broker, and what is needed to reach it by each protocol."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.folder = folder
        self.ports = ports
        authority = Authority.create()
        write_secret(folder / "ca.pem", authority.certificate)
        write_secret(folder / "broker.pem", authority.issue("broker", ["127.0.0.1"]).keystore)
        self.broker = RunningBroker(
            {
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
                "inter.broker.listener.name": "PLAINTEXT",
                "ssl.keystore.location": str(folder / "broker.pem"),
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.jaas.config": f'x required user_{USER}="{PASSWORD}";',
            },
            mode="process",
        )

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.broker.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, transfer: Callable[[], int]) -> Measured:
        cpu, begun = self.cpu_seconds(), time.perf_counter()
        size = transfer()
        return Measured(size, time.perf_counter() - begun, self.cpu_seconds() - cpu)

    # -- batches

    def link(self, protocol: str) -> Link:
        settings = ClientSettings(
            (),
            security_protocol=protocol,
            ca_location=str(self.folder / "ca.pem"),
            sasl_mechanism="PLAIN" if protocol == "SASL_SSL" else "",
            sasl_username=USER,
            sasl_password=PASSWORD,
            request_timeout_ms=int(WAIT_SECONDS * 1000),
        )
        return Link.open("127.0.0.1", self.ports[protocol], settings)

    def produce_batches(self, link: Link, topic: str, size: int) -> int:
        body = produce_body(topic, bytes(build_batch([Record(0, 0, None, os.urandom(BATCH_BYTES), ())])))
        under_way: list[int] = []
        count = max(size // BATCH_BYTES, 1)
        for _ in range(count):
            if len(under_way) == IN_FLIGHT:
                check_produced(bytes(link.receive(under_way.pop(0))), topic)
            under_way.append(link.send(PRODUCE, 7, body))
        for ticket in under_way:
            check_produced(bytes(link.receive(ticket)), topic)
        return count * BATCH_BYTES

    def fetch_batches(self, link: Link, topic: str, size: int) -> int:
        count = max(size // BATCH_BYTES, 1)
        received = offset = 0
        while offset < count:
            answer = link.receive(link.send(FETCH, 4, fetch_body(topic, offset, FETCH_BYTES)))
            received += len(answer)
            # Batches of one record each: as many records as whole batches came.
            offset += max(len(answer) // BATCH_BYTES, 1)
        return received

    # -- records

    def properties(self, protocol: str) -> dict[str, str | int]:
        found: dict[str, str | int] = {
            "bootstrap.servers": f"127.0.0.1:{self.ports[protocol]}",
            "security.protocol": protocol,
        }
        if protocol != "PLAINTEXT":
            found["ssl.ca.location"] = str(self.folder / "ca.pem")
        if protocol == "SASL_SSL":
            found |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
        return found

    def produce_records(self, producer: Producer, topic: str, size: int) -> int:
        value = os.urandom(RECORD_BYTES)
        count = size // RECORD_BYTES
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.05)
        if producer.flush(WAIT_SECONDS):
            raise TimeoutError("records were not delivered in time")
        return count * RECORD_BYTES

    def consume_records(self, consumer: Consumer, topic: str, size: int) -> int:
        consumer.assign([TopicPartition(topic, 0, 0)])
        left = size // RECORD_BYTES
        deadline = time.monotonic() + WAIT_SECONDS
        while left > 0:
            if time.monotonic() > deadline:
                raise TimeoutError("records did not come in time")
            left -= sum(1 for message in consumer.consume(min(left, 2_000), 0.5) if message.error() is None)
        return size


def produce_body(topic: str, records: bytes) -> bytes:
    """Produce v7 for partition 0."""
    name = topic.encode()
    head = struct.pack(">hhii", -1, 1, 30_000, 1) + struct.pack(">h", len(name)) + name
    return head + struct.pack(">iii", 1, 0, len(records)) + records


def check_produced(answer: bytes, topic: str) -> None:
    error = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)[0]
    if error:
        raise ValueError(f"the broker refused a batch: {error}")


def fetch_body(topic: str, offset: int, max_bytes: int) -> bytes:
    """Fetch v4 of partition 0."""
    name = topic.encode()
    head = struct.pack(">iiiibi", -1, 1000, 1, max_bytes, 0, 1) + struct.pack(">h", len(name)) + name
    return head + struct.pack(">iiqi", 1, 0, offset, max_bytes)


def one_round(bench: Bench, protocol: str, number: int, size: int) -> dict[str, Measured]:
    """Everything once by one protocol, with topics of its own."""
    topic = f"batches-{protocol}-{number}"
    bench.broker.create_topic(topic)
    link = bench.link(protocol)
    found = {
        "batches produce": bench.measure(lambda: bench.produce_batches(link, topic, size)),
        "batches fetch": bench.measure(lambda: bench.fetch_batches(link, topic, size)),
    }
    link.close()
    topic = f"records-{protocol}-{number}"
    bench.broker.create_topic(topic)
    properties = bench.properties(protocol)
    producer = Producer({**properties, "linger.ms": 20, "acks": "1"})
    found["records produce"] = bench.measure(lambda: bench.produce_records(producer, topic, size // 4))
    consumer = Consumer({**properties, "group.id": "bench", "enable.auto.commit": False})
    found["records fetch"] = bench.measure(lambda: bench.consume_records(consumer, topic, size // 4))
    consumer.close()
    return found


def summary(all_measured: dict[tuple[str, str], list[Measured]]) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []
    for (what, protocol), measured in all_measured.items():
        rates = [each.bytes / each.seconds / MEGABYTE for each in measured]
        plain = [each.bytes / each.seconds / MEGABYTE for each in all_measured[what, PROTOCOLS[0]]]
        cpu = sum(each.broker_cpu_seconds for each in measured)
        gigabytes = sum(each.bytes for each in measured) / (1000 * MEGABYTE)
        rows.append(
            {
                "what": what,
                "protocol": protocol,
                "median MB/s": statistics.median(rates),
                "lowest": min(rates),
                "highest": max(rates),
                "of PLAINTEXT": statistics.median(rates) / statistics.median(plain),
                "broker CPU s/GB": cpu / gigabytes,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reserved = {name: ReservedPort() for name in PROTOCOLS}
    all_measured: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tidelog-tls-") as folder:
        bench = Bench(Path(folder), {name: port.port for name, port in reserved.items()})
        with bench.broker:
            for protocol in PROTOCOLS:
                one_round(bench, protocol, -1, 4 * MEGABYTE)  # whatever is imported on first use
            for number in range(options.rounds):
                for protocol in PROTOCOLS:
                    for what, measured in one_round(
                        bench, protocol, number, options.megabytes * MEGABYTE
                    ).items():
                        all_measured[what, protocol].append(measured)
    for port in reserved.values():
        port.close()
    rows = summary(dict(sorted(all_measured.items(), key=lambda item: item[0][0])))
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "rows": rows}, indent=1))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {options.rounds} rounds of {options.megabytes} MB\n")
    print("| | | MB/s, median | lowest to highest | of PLAINTEXT | broker CPU, s/GB |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['what']} | `{row['protocol']}` | {row['median MB/s']:.0f} | {row['lowest']:.0f}–"
            f"{row['highest']:.0f} | {row['of PLAINTEXT']:.2f} | {row['broker CPU s/GB']:.2f} |"
        )


if __name__ == "__main__":
    main()
